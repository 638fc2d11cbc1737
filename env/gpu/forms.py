"""Seconds of kernels of GPUs: closed forms, none of which falls if a size grows.

A product runs in tiles. A library takes the best of some tiles, and may split the inner dimension among
processors when tiles are few:

    T = start + (C^2.5 + M^2.5)^(1/2.5)
    C = least over tiles (r, c) and splits q of
        ceil(tiles q / processors) (inner_q max(2 r c / matrix, b (r + c) / feed, step / 64) + b r c / store)
        + [q > 1] (split + 8 q m n / feed)
    M = bytes of operands and results / memory

with rates of one processor in the first line of C, and b bytes an element. Attention is a kernel of its own
form: blocks of 128 rows of a head (prefill), or one row of each head with all keys (decode), which may be
split.

Measured beside other forms in docs/benchmarks.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray
from go_opt.common.compiling import compiled
from go_opt.env.gpu.figures import KernelFigures

_SIDES: Final = (16, 32, 64, 128, 256)
_TILES: Final = np.array([(r, c) for r in _SIDES for c in _SIDES if r * c <= 32768], np.float64)
_SPLITS: Final = np.array((1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128), np.float64)
_INNER: Final = 32.0  # a part of the inner dimension is a multiple of it
_PARTIAL_BYTES: Final = 8.0  # of a partial result in float32 that is written and read
_OVERLAP: Final = 2.5  # how compute and traffic overlap; infinite: the longer hides the other
_CACHE_END: Final = 1.25  # at this multiple of the cache nothing of cyclic operands is left in it
_BLOCK_ROWS: Final = 128.0
_BLOCK_KEYS: Final = 64.0
_UNITS: Final = 128  # of what the largest tile holds, in bounds
_MOST_WAVES: Final = 16  # for which a bound counts whole waves
_DECODE_SPLITS: Final = np.array([1, 2, 4, 8, 16, 32, 64, 128], np.float64)


class Products(NamedTuple):
    """Batches of products [rows, inner] by [inner, columns], in one type each. All [N]."""

    batch: FloatArray
    rows: FloatArray
    inner: FloatArray
    columns: FloatArray
    flops_per_s: FloatArray  # peak rate
    element_bytes: FloatArray
    is_stored: FloatArray  # 0: results stay in the processors, as the scores of an attention


class Attentions(NamedTuple):
    """Sizes of attention ops. All [N]."""

    batch: FloatArray
    heads: FloatArray  # of queries
    groups: FloatArray  # heads of keys and values; each serves as many heads of queries
    rows: FloatArray  # of queries
    keys: FloatArray  # of the rows themselves and of those before them
    depth: FloatArray  # of a head
    is_causal: FloatArray  # 1: a row sees no later one
    flops_per_s: FloatArray  # peak rate of products
    element_bytes: FloatArray


class _Rates(NamedTuple):
    """Seconds of all processors for one unit of work each, and of splitting."""

    share: float
    processors: float
    feed_s: float
    step_s: float
    store_s: float
    split_s: float


@dataclass(frozen=True)
class GpuKernels:
    """Seconds of kernels on one kind of chip, beside their start."""

    figures: KernelFigures
    bytes_per_s: float  # peak rate of the memory

    @property
    def _rates(self) -> _Rates:
        figures, processors = self.figures, float(self.figures.tiles_at_once)
        return _Rates(
            figures.matrix_share,
            processors,
            processors / figures.feed_bytes_per_s,
            figures.step_s / 64.0,
            processors / figures.store_bytes_per_s,
            figures.split_overhead_s,
        )

    def product_s(self, of: Products, num_bytes: FloatArray) -> FloatArray:
        """[N] seconds of products that read and write ``num_bytes`` [N]."""
        return overlapped_s(_least_of_tiles(of, self._rates, _TILES, _SPLITS), self._moved_s(num_bytes))

    def product_parts_s(self, of: Products, num_bytes: FloatArray, *, in_waves: bool = True) -> FloatArray:
        """[N] at most what all parts into which products are divided take together.

        Tiles of parts are filled no further than the product's own rows and columns, and run in whole waves:
        the least seconds of waves of any tiles that hold all results are an integer program (a knapsack that
        is to be filled). Or the sums of a part are split, and the rates of full waves hold, beside what a
        split costs. Terms that are divided keep the bound: it is concave in them, and above zero without any.

        Args:
          in_waves: False: parts may run on several kinds of chips, and the rates of full waves hold.
        """
        compute_s = _least_of_waves(of, self._rates, _TILES, _MOST_WAVES if in_waves else 0)
        fastest = max(self.figures.memory_share * self.bytes_per_s, self.figures.cache_bytes_per_s)
        return overlapped_s(compute_s, num_bytes / fastest)

    def rated_s(self, flops: FloatArray, flops_per_s: FloatArray, num_bytes: FloatArray) -> FloatArray:
        """[N] seconds of ops whose shape is not known: at the reached rates."""
        compute_s = flops / (self.figures.matrix_share * flops_per_s)
        return overlapped_s(compute_s, num_bytes / (self.figures.memory_share * self.bytes_per_s))

    def _moved_s(self, num_bytes: FloatArray) -> FloatArray:
        """[N] seconds in which the operands and results of products move."""
        figures = self.figures
        seconds = num_bytes / (figures.memory_share * self.bytes_per_s)
        if not (figures.cache_bytes and figures.cache_bytes_per_s):
            return seconds
        hit = np.clip((_CACHE_END - num_bytes / figures.cache_bytes) / (_CACHE_END - 1.0), 0.0, 1.0)
        cached_s = np.minimum(num_bytes / figures.cache_bytes_per_s, seconds)
        return np.asarray(hit * cached_s + (1.0 - hit) * seconds, np.float64)

    def attention_s(self, of: Attentions) -> FloatArray:
        """[N] seconds of attention kernels: one row decodes, several prefill."""
        figures, decode_s = self.figures, self._decode_s(of)
        longer_s = np.maximum(self._prefill_s(of), decode_s)  # never less than one row
        own_start_s = np.where(of.rows == 1, figures.decode_overhead_s, figures.prefill_overhead_s)
        return np.where(of.rows == 1, decode_s, longer_s) - np.minimum(own_start_s, figures.start_s)

    def attention_parts_s(self, of: Attentions) -> FloatArray:
        """[N] at most what all parts of attention ops take together."""
        pairs = of.rows * (of.keys - np.where(of.is_causal > 0, 0.5 * of.rows, 0.0))
        # Parts of one row decode.
        key_bytes = 2.0 * of.element_bytes * of.batch * of.groups * of.rows * of.keys * of.depth
        keys_s = key_bytes / self._attention_bytes_per_s
        scores_s = of.batch * of.heads * pairs * self._score_s(of)
        return np.where(of.rows == 1, keys_s, np.minimum(scores_s, keys_s))

    @property
    def _attention_bytes_per_s(self) -> float:
        return self.figures.attention_memory_share * self.bytes_per_s

    def _score_s(self, of: Attentions) -> FloatArray:
        """[N] seconds of one score on all processors."""
        rate = self.figures.attention_matrix_share * of.flops_per_s
        return np.asarray(4.0 * of.depth / rate + 1.0 / self.figures.scores_per_s, np.float64)

    def _prefill_s(self, of: Attentions) -> FloatArray:
        figures, score_s = self.figures, self._score_s(of)
        blocks = of.batch * of.heads * np.ceil(of.rows / _BLOCK_ROWS)
        block_s = figures.prefill_block_s
        total_s = of.batch * of.heads * _scores(of) * score_s + blocks * block_s / figures.tiles_at_once
        longest_s = block_s + _BLOCK_ROWS * of.keys * score_s * figures.tiles_at_once
        moved = of.rows * (2.0 * of.heads + 2.0 * of.groups) + 4.0 * of.keys * of.groups
        moved *= of.element_bytes * of.batch * (of.depth + 64.0)
        moved_s = moved / self._attention_bytes_per_s
        return np.asarray(figures.prefill_overhead_s + np.maximum(total_s, longest_s) + moved_s, np.float64)

    def _decode_s(self, of: Attentions) -> FloatArray:
        figures, memory, splits = self.figures, self._attention_bytes_per_s, _DECODE_SPLITS[:, None]
        key_s = 2.0 * of.element_bytes * of.depth * figures.tiles_at_once / memory
        part_s = _BLOCK_KEYS * np.ceil(of.keys / (_BLOCK_KEYS * splits)) * key_s
        waves = np.ceil(of.batch * of.groups * splits / figures.tiles_at_once)
        seconds = waves * (figures.decode_block_s + part_s) + (splits > 1) * figures.decode_split_s
        heads_s = 4.0 * of.element_bytes * of.batch * of.heads * of.depth / memory
        return np.asarray(figures.decode_overhead_s + seconds.min(axis=0) + heads_s, np.float64)


@compiled
def _least_of_tiles(of: Products, by: _Rates, tiles: FloatArray, splits: FloatArray) -> FloatArray:
    least_s = np.full(len(of.rows), np.inf)
    for i in range(len(of.rows)):
        results = of.batch[i] * of.rows[i] * of.columns[i]
        partial_s = _PARTIAL_BYTES * results * by.feed_s / by.processors
        for t in range(len(tiles)):
            rows, columns = tiles[t, 0], tiles[t, 1]
            number = of.batch[i] * np.ceil(of.rows[i] / rows) * np.ceil(of.columns[i] / columns)
            flops_s = 2.0 * rows * columns * by.processors / (by.share * of.flops_per_s[i])
            step_s = max(flops_s, of.element_bytes[i] * (rows + columns) * by.feed_s, by.step_s)
            store_s = of.is_stored[i] * of.element_bytes[i] * rows * columns * by.store_s
            for split in splits:
                more_s = by.split_s + partial_s * split if split > 1.0 else 0.0
                if more_s >= least_s[i]:
                    break
                waves = np.ceil(number * split / by.processors)
                inner = _INNER * np.ceil(of.inner[i] / (_INNER * split))
                least_s[i] = min(least_s[i], waves * (inner * step_s + store_s) + more_s)
    return least_s


@compiled
def _least_of_waves(of: Products, by: _Rates, tiles: FloatArray, most_waves: int) -> FloatArray:
    least_s = np.zeros(len(of.rows))
    filled, wave_s = np.zeros(len(tiles)), np.zeros(len(tiles))
    for i in range(len(of.rows)):
        inner, element_s, split_element_s = _INNER * np.ceil(of.inner[i] / _INNER), np.inf, np.inf
        for t in range(len(tiles)):
            rows, columns = tiles[t, 0], tiles[t, 1]
            flops_s = 2.0 * rows * columns * by.processors / (by.share * of.flops_per_s[i])
            step_s = max(flops_s, of.element_bytes[i] * (rows + columns) * by.feed_s, by.step_s)
            store_s = of.is_stored[i] * of.element_bytes[i] * rows * columns * by.store_s
            filled[t] = min(rows, of.rows[i]) * min(columns, of.columns[i])
            wave_s[t] = inner * step_s + store_s
            element_s = min(element_s, wave_s[t] / filled[t])
            split_element_s = min(split_element_s, (of.inner[i] * step_s + store_s) / filled[t])
        results = of.batch[i] * of.rows[i] * of.columns[i] / by.processors
        unit = filled.max() / _UNITS
        least_s[i] = results * element_s
        if results <= most_waves * filled.max():
            units = int(np.ceil(results / unit * (1.0 - 1e-12)))
            best_s = np.zeros(units + 1)
            for unit_of in range(1, units + 1):
                best_s[unit_of] = np.inf
                for t in range(len(tiles)):
                    rest = max(0, unit_of - int(np.ceil(filled[t] / unit)))
                    best_s[unit_of] = min(best_s[unit_of], best_s[rest] + wave_s[t])
            least_s[i] = max(least_s[i], best_s[units])
        split_s = by.split_s if most_waves > 0 else 0.0
        least_s[i] = min(least_s[i], results * split_element_s + split_s)
    return least_s


def overlapped_s(compute_s: FloatArray, traffic_s: FloatArray) -> FloatArray:
    """[N] seconds of compute and traffic that overlap in part."""
    longer, shorter = np.maximum(compute_s, traffic_s), np.minimum(compute_s, traffic_s)
    share = np.divide(shorter, longer, out=np.zeros_like(longer), where=longer > 0)
    return np.asarray(longer * (1.0 + share**_OVERLAP) ** (1.0 / _OVERLAP), np.float64)


def _scores(of: Attentions) -> FloatArray:
    """[N] scores of one head of one sample; of a causal one with those in the blocks on the diagonal."""
    seen = of.rows * (of.keys - 0.5 * of.rows + 0.5 * _BLOCK_ROWS)
    return np.where(of.is_causal > 0, seen, np.maximum(seen, of.rows * of.keys))
