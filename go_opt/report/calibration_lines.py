"""What a calibration changed of its target, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from go_opt.env import Target

_SAME = 0.005  # relative difference of figures that count as unchanged


def fitted_lines(given: Target, found: Target) -> Iterator[str]:
    """The figures that were fitted, those that the fit left as given, and those that are never fitted."""
    before, after = _figures(given), _figures(found)
    is_same = {name: abs(after[name] - value) <= _SAME * abs(value) for name, value in before.items()}
    changed = [f"{name} {before[name]:.4g} to {after[name]:.4g}" for name in before if not is_same[name]]
    if num_factors := len(found.kinds[0].simulator.op_factors):
        changed.append(f"{num_factors} op_factors")
    yield f"fitted    {', '.join(changed) or 'nothing'}"
    yield f"as given  {', '.join(name for name, same in is_same.items() if same) or 'nothing'}"
    yield "assumed   dma_engines, dma_setup_s, buffers, packet_bytes, latency_s and all rules"


def _figures(target: Target) -> dict[str, float]:
    kind = target.kinds[0]
    sizes = ("tile_rows", "tile_inner", "tile_columns", "tiles_at_once", "vector_lanes", "fill_s")
    memory = ("alignment_bytes", "stream_buffer_bytes")
    return {
        "matrix_flops_per_s": max(kind.matrix_flops_per_s.values()),
        "vector_flops_per_s": max(kind.vector_flops_per_s.values()),
        "sram_bytes_per_s": kind.sram_bytes_per_s,
        "kernel_overhead_s": kind.kernel_overhead_s,
        **{name: getattr(kind.simulator, name) for name in sizes},
        "sram_bytes": kind.sram_bytes,
        **{name: getattr(kind.simulator, name) for name in memory},
        "rate_bytes_per_s": float(target.topology.rate_bytes_per_s.max(initial=0.0)),
        "in_bytes_per_s": target.host_in_bytes_per_s,
        "out_bytes_per_s": target.host_out_bytes_per_s,
        "weight_prefetch": target.simulator.weight_prefetch,
    }
