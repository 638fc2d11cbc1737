"""The slow, obvious twin of the closed form of products on GPUs: plain loops."""

from __future__ import annotations

import math

from go_opt.env.gpu.figures import KernelFigures

SIDES = (16, 32, 64, 128, 256)
TILES = [(r, c) for r in SIDES for c in SIDES if r * c <= 32768]


def compute_seconds(
    figures: KernelFigures, rate: float, shape: tuple[int, int, int, int], *, is_stored: bool = True
) -> float:
    """A batch of products [rows, inner] by [inner, columns] of bfloat16 at a peak ``rate``."""
    batch, m, k, n = shape
    best, processors, matrix = math.inf, figures.tiles_at_once, figures.matrix_share * rate
    for r, c in TILES:
        for q in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128):
            inner = math.ceil(k / q / 32) * 32
            step = max(
                2 * r * c * processors / matrix,
                2 * (r + c) * processors / figures.feed_bytes_per_s,
                figures.step_s / 64,
            )
            waves = math.ceil(batch * math.ceil(m / r) * math.ceil(n / c) * q / processors)
            seconds = waves * (inner * step + is_stored * 2 * r * c * processors / figures.store_bytes_per_s)
            if q > 1:
                seconds += figures.split_overhead_s + 8 * q * batch * m * n / figures.feed_bytes_per_s
            best = min(best, seconds)
    return best


def overlapped(compute_s: float, traffic_s: float) -> float:
    """Compute and traffic that overlap in part."""
    return float((compute_s**2.5 + traffic_s**2.5) ** 0.4)
