"""How target files state figures of GPU kernels and of collectives."""

from __future__ import annotations

from typing import Final

from go_opt.env.gpu.figures import COLLECTIVES, Collective, KernelFigures
from go_opt.env.target.fields import COUNT, NON_NEGATIVE, POSITIVE, one_of, rows, table

KERNEL_FIGURES: Final = table(
    {
        "tiles_at_once": COUNT("Processors that compute one tile each, such as SMs."),
        "start_s": POSITIVE("Seconds of the shortest kernel."),
        "matrix_share": POSITIVE("Reached matrix rate, as a share of the peak."),
        "memory_share": POSITIVE("Reached memory bandwidth, as a share of the peak."),
        "feed_bytes_per_s": POSITIVE("Rate at which all processors together take operands."),
        "step_s": POSITIVE("Least seconds of 64 of the inner dimension in a tile."),
        "store_bytes_per_s": POSITIVE("Rate at which all processors together store results."),
        "split_overhead_s": POSITIVE("Seconds more if the inner dimension is split."),
        "prefill_overhead_s": POSITIVE("Seconds of the shortest attention of several rows."),
        "scores_per_s": POSITIVE("Exponentials of attention scores per second."),
        "prefill_block_s": POSITIVE("Seconds more of 128 rows of a head."),
        "decode_overhead_s": POSITIVE("Seconds of the shortest attention of one row."),
        "decode_block_s": POSITIVE("Seconds more of one row of a head of keys."),
        "decode_split_s": POSITIVE("Seconds more if the keys of a row are split."),
        "cache_bytes": NON_NEGATIVE(
            "Operands of a product up to this size are in the cache.", is_optional=True
        ),
        "cache_bytes_per_s": NON_NEGATIVE("Bandwidth of this cache (default: 0, none).", is_optional=True),
        "attention_matrix_ratio": NON_NEGATIVE(
            "Matrix rate of attention, in times that of products (default: 0, the peak).", is_optional=True
        ),
        "attention_memory_ratio": POSITIVE(
            "Bandwidth of attention, in times that of products (default: 1).", is_optional=True
        ),
    },
    KernelFigures,
)
COLLECTIVE_ROWS: Final = rows(
    table(
        {
            "op": one_of(*COLLECTIVES)("The collective."),
            "start_s": POSITIVE("Seconds of the least message."),
            "link_bytes_per_s": POSITIVE("Rate of what each chip sends."),
            "hop_s": NON_NEGATIVE("Seconds more for each further chip (default: 0).", is_optional=True),
            "copy_bytes_per_s": NON_NEGATIVE(
                "Rate at which the whole buffer is copied besides (default: 0, not at all).", is_optional=True
            ),
            "group": COUNT("Only groups of so many chips (default: any).", is_optional=True),
        },
        Collective,
    )("A collective.")
)
