"""What a calibration changed of its target, as lines of text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from go_opt.env import Target

_SAME = 0.005  # relative difference of figures that count as unchanged


def fitted_lines(
    given: Target, found: Target, of_kernels: Mapping[str, tuple[int, float]] | None = None
) -> Iterator[str]:
    """The figures that were fitted, those that the fit left as given, and those that are never fitted.

    Args:
      of_kernels: of a fit to measured kernels: rows, and error of those held out, by what they are.
    """
    if of_kernels is not None:
        yield from _kernel_lines(given, found, of_kernels)
        return
    before, after = _figures(given), _figures(found)
    is_same = {name: abs(after[name] - value) <= _SAME * abs(value) for name, value in before.items()}
    changed = [f"{name} {before[name]:.4g} to {after[name]:.4g}" for name in before if not is_same[name]]
    if num_factors := len(found.kinds[0].simulator.op_factors):
        changed.append(f"{num_factors} op_factors")
    yield f"fitted    {', '.join(changed) or 'nothing'}"
    yield f"as given  {', '.join(name for name, same in is_same.items() if same) or 'nothing'}"
    yield "assumed   dma_engines, dma_setup_s, buffers, packet_bytes, latency_s and all rules"


def _kernel_lines(given: Target, found: Target, errors: Mapping[str, tuple[int, float]]) -> Iterator[str]:
    """Figures of kernels and collectives that differ from those given, and errors of rows held out."""
    before, after = _kernel_figures(given), _kernel_figures(found)
    for name, value in after.items():
        if value != before.get(name):
            yield f"fitted    {name} {f'{before[name]:.4g} to ' if name in before else ''}{value:.4g}"
    for what, (rows, error) in errors.items():
        known = "unknown" if math.isnan(error) else f"{error:.1%}"
        yield f"error     {known} of rows held out, of {rows} of {what}"


def _kernel_figures(target: Target) -> dict[str, float]:
    kernels = target.kinds[0].kernels
    figures = dict(vars(kernels)) if kernels else {}
    for one in target.collectives:
        group = f" of {one.group}" if one.group else ""
        figures |= {
            f"{one.op}{group} {name}": value
            for name, value in vars(one).items()
            if name not in ("op", "group")
        }
    return figures


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
