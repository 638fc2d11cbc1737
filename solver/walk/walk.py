"""The walk: along an order it decides before each kernel whether the next chip begins there.

On open chip d of D it cuts before kernel i of M with probability

    sigmoid(weights · f + head[i] + log(D / max(M - D, D + 1))),

on the last chip with probability 0. So with weights and head 0, all chips are used in most walks. The
features ``f`` describe the open chip. Let L be its load in seconds, R the work left when it opened,
t = R / (D - d) its fair share, s the seconds of kernel i, x the link seconds of the cut and W all work;
as shares of the chip's memory, m the weights on it, w the further weights of kernel i, l its most live
activations, and c, b, b' the activations that cross where it begins, before kernel i, and after it:

     0  1
     1  min(L / t, 4)
     2  min((L + s) / t, 4)
     3  L + s / 2 > t
     4  log10(x D / W + 0.01)
     5  min(L / t, 3) times feature 4
     6  min(m + w, 3)
     7  m + w > 0.9
     8  no more bytes cross here than before kernel i - 1
     9  min(l + 2 (c + b), 3)
    10  max(l, b) + 2 (c + b') > 0.9
    11  min(2 b, 3)

The slow twin is ``tests/solver/walk_twin.py``. Axes: ``S`` walks, ``M`` kernels, ``D`` chips, ``F`` features.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, IntArray, LongArray, row_pointers
from go_opt.common.compiling import compiled, uncounted_inner
from go_opt.env.cost.tables import CostTables, hop_seconds_per_byte
from go_opt.errors import InvalidInputError
from go_opt.model.graph import WEIGHT
from go_opt.solver.problem.sequence import kernel_sequence, reads_by_kernel
from go_opt.solver.slicing.memory import SegmentMemory, segment_memory


class WalkProblem(NamedTuple):
    """Kernels along an order, and the chips that they fill one after the other.

    Axes: ``N`` ops, ``M`` kernels, ``D`` chips, ``Q`` chip kinds, ``H`` different rates of hops, ``W`` reads
    of weights.
    """

    kernel_of: IntArray  # [N] numbered along the order
    kernel_s: FloatArray  # [Q, M]
    left_s: FloatArray  # [M + 1] seconds of the kernels from here on, each on its fastest kind
    chip_kind: IntArray  # [D]
    traffic: FloatArray  # [H, M] feature 4 of a cut before the kernel
    hop: LongArray  # [D] row of ``traffic`` for the hop from each chip
    weight_ptr: LongArray  # [M + 1]
    weight_bytes: LongArray  # [W] stored bytes of the weights that each kernel reads
    weight_before: LongArray  # [W] the kernel that read the weight before, -1: none
    memory: SegmentMemory  # activations by kernel
    sent_bytes: LongArray  # [M + 1] produced before a cut and read after it, as sent over links

    @property
    def num_kernels(self) -> int:
        return self.kernel_s.shape[1]

    @property
    def num_chips(self) -> int:
        return len(self.chip_kind)


def walk_problem(tables: CostTables, order: IntArray, fusion_group: IntArray) -> WalkProblem:
    """Returns the problem of a walk along ``order`` [N] by the kernels of ``fusion_group`` [N]."""
    sequence = kernel_sequence(tables, order, fusion_group, adjacent=True)
    left_s = np.append(np.cumsum(sequence.kernel_s.min(axis=0)[::-1])[::-1], 0.0)
    rates, hop = np.unique(hop_seconds_per_byte(tables), return_inverse=True)
    fair_share_s = max(left_s[0] / tables.num_chips, np.finfo(np.float64).tiny)
    reader, before, weight = reads_by_kernel(tables, sequence.kernel_of, WEIGHT)
    return WalkProblem(
        kernel_of=sequence.kernel_of,
        kernel_s=sequence.kernel_s,
        left_s=left_s,
        chip_kind=tables.chip_kind,
        traffic=np.log10(sequence.crossing_bytes[:-1] * (rates[:, None] / fair_share_s) + 0.01),
        hop=hop.astype(np.int64),
        weight_ptr=row_pointers(reader, sequence.num_kernels),
        weight_bytes=tables.stored_bytes[weight],
        weight_before=before,
        memory=segment_memory(tables, sequence),
        sent_bytes=sequence.crossing_bytes,
    )


NUM_FEATURES: Final = 12
_LOAD, _SHARE, _WEIGHTS, _ENTERED, _LIVE, _MOST = range(6)  # of the open chip, all but two in bytes
_LEAST_S: Final = 1e-300  # of a fair share, which may be 0


class WalkScores(NamedTuple):
    """The log-probability of walks, and its gradient by the parameters."""

    log_prob: FloatArray  # [S]
    by_weights: FloatArray  # [S, F]
    by_head: FloatArray  # [S, M]


def draw_walks(
    problem: WalkProblem, weights: FloatArray, head: FloatArray, uniforms: FloatArray
) -> tuple[BoolArray, IntArray]:
    """Returns cuts before kernels [S, M], and the chips of kernels [S, M].

    Args:
      weights: [F] of the features.
      head: [M] of the kernels.
      uniforms: [S, M] numbers from [0, 1), one for each decision.
    """
    is_cut = np.zeros(uniforms.shape, dtype=np.bool_)
    _walk_all(problem, *_checked(problem, weights, head, is_cut), uniforms, is_cut, _no_scores())
    return is_cut, np.cumsum(is_cut, axis=1, dtype=np.int32)


def score_walks(problem: WalkProblem, weights: FloatArray, head: FloatArray, is_cut: BoolArray) -> WalkScores:
    """Returns the scores of walks with the cuts ``is_cut`` [S, M].

    Raises:
      InvalidInputError: a walk cuts before the first kernel, or more often than there are chips.
    """
    parameters = _checked(problem, weights, head, is_cut)
    if is_cut[:, :1].any() or (is_cut.sum(axis=1) >= problem.num_chips).any():
        raise InvalidInputError(
            "is_cut has a cut before the first kernel or on the last chip.", field="is_cut"
        )
    num_walks = len(is_cut)
    scores = WalkScores(np.zeros(num_walks), np.zeros((num_walks, NUM_FEATURES)), np.zeros(is_cut.shape))
    _walk_all(problem, *parameters, np.zeros((0, 0)), is_cut, scores)
    return scores


def _no_scores() -> WalkScores:
    return WalkScores(np.zeros(0), np.zeros((0, 0)), np.zeros((0, 0)))


def _checked(
    problem: WalkProblem, weights: FloatArray, head: FloatArray, is_cut: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """Weights and head as the kernel takes them, or raises if a shape or a value is wrong."""
    checked = np.asarray(weights, dtype=np.float64), np.asarray(head, dtype=np.float64)
    for name, values, size in zip(
        ("weights", "head"), checked, (NUM_FEATURES, problem.num_kernels), strict=True
    ):
        if values.shape != (size,) or not np.isfinite(values).all():
            raise InvalidInputError(f"{name} must be {size} finite numbers.", field=name)
    if is_cut.ndim != 2 or is_cut.shape[1] != problem.num_kernels:
        raise InvalidInputError(f"each walk must decide on {problem.num_kernels} kernels.", field="walks")
    return checked


@compiled
def _walk_all(
    problem: WalkProblem,
    weights: FloatArray,
    head: FloatArray,
    uniforms: FloatArray,
    is_cut: BoolArray,
    scores: WalkScores,
) -> None:
    """Draws ``is_cut`` if there are ``uniforms``, else fills ``scores``."""
    num_kernels, num_chips = problem.kernel_s.shape[1], len(problem.chip_kind)
    prior = math.log(num_chips / max(num_kernels - num_chips, num_chips + 1))
    features, open_chip = np.empty(NUM_FEATURES), np.empty(6)
    draws = len(uniforms) > 0
    for s in range(len(is_cut)):
        chip, start = 0, 0
        _open(problem, chip, start, open_chip)
        for kernel in range(num_kernels):
            further_bytes = _further_weights(problem, start, kernel)
            if kernel > 0 and chip < num_chips - 1:
                _describe(problem, chip, kernel, further_bytes, open_chip, features)
                logit = prior + head[kernel]
                for j in range(NUM_FEATURES):
                    logit += weights[j] * features[j]
                odds = math.exp(-abs(logit))  # of the less likely decision
                chance = (1.0 if logit >= 0.0 else odds) / (1.0 + odds)
                if draws:
                    is_cut[s, kernel] = uniforms[s, kernel] < chance
                else:
                    cut = 1.0 if is_cut[s, kernel] else 0.0
                    unlikely = abs(logit) if (cut == 1.0) != (logit >= 0.0) else 0.0
                    scores.log_prob[s] -= unlikely + math.log1p(odds)
                    scores.by_head[s, kernel] = cut - chance
                    for j in range(NUM_FEATURES):
                        scores.by_weights[s, j] += (cut - chance) * features[j]
                if is_cut[s, kernel]:
                    chip, start = chip + 1, kernel
                    _open(problem, chip, start, open_chip)
                    further_bytes = _further_weights(problem, start, kernel)
            _add(problem, chip, start, kernel, further_bytes, open_chip)


@uncounted_inner
def _open(problem: WalkProblem, chip: int, start: int, open_chip: FloatArray) -> None:
    """Opens ``chip`` before kernel ``start``."""
    open_chip[_LOAD] = 0.0
    open_chip[_SHARE] = max(problem.left_s[start] / (len(problem.chip_kind) - chip), _LEAST_S)
    open_chip[_WEIGHTS] = 0.0
    open_chip[_ENTERED] = problem.memory.crossing_bytes[start]
    open_chip[_LIVE] = 0.0
    open_chip[_MOST] = 0.0


@uncounted_inner
def _add(
    problem: WalkProblem, chip: int, start: int, kernel: int, further_bytes: float, open_chip: FloatArray
) -> None:
    """Adds ``kernel`` to the open chip, which begins with kernel ``start``."""
    memory = problem.memory
    open_chip[_LOAD] += problem.kernel_s[problem.chip_kind[chip], kernel]
    open_chip[_WEIGHTS] += further_bytes
    for i in range(memory.write_ptr[kernel], memory.write_ptr[kernel + 1]):
        open_chip[_LIVE] += memory.size_bytes[memory.write[i]]
    open_chip[_MOST] = max(open_chip[_MOST], open_chip[_LIVE])
    for i in range(memory.read_ptr[kernel], memory.read_ptr[kernel + 1]):
        tensor = memory.read[i]
        if memory.last[tensor] == kernel and memory.home[tensor] >= start and not memory.is_output[tensor]:
            open_chip[_LIVE] -= memory.size_bytes[tensor]


@uncounted_inner
def _further_weights(problem: WalkProblem, start: int, kernel: int) -> float:
    """Returns the bytes of the weights that ``kernel`` reads, but no earlier kernel of the open chip."""
    size = 0.0
    for i in range(problem.weight_ptr[kernel], problem.weight_ptr[kernel + 1]):
        if problem.weight_before[i] < start:
            size += problem.weight_bytes[i]
    return size


@uncounted_inner
def _describe(
    problem: WalkProblem,
    chip: int,
    kernel: int,
    further_bytes: float,
    open_chip: FloatArray,
    features: FloatArray,
) -> None:
    """Fills the features [F] of a cut before ``kernel``."""
    kernel_s = problem.kernel_s[problem.chip_kind[chip], kernel]
    load_s, share_s = open_chip[_LOAD], open_chip[_SHARE]
    traffic = problem.traffic[problem.hop[chip], kernel]
    sram_bytes = max(1.0, problem.memory.sram_bytes[chip])
    weights = (open_chip[_WEIGHTS] + further_bytes) / sram_bytes
    entered, most = open_chip[_ENTERED] / sram_bytes, open_chip[_MOST] / sram_bytes
    here = problem.memory.crossing_bytes[kernel] / sram_bytes
    after = problem.memory.crossing_bytes[kernel + 1] / sram_bytes
    features[0] = 1.0
    features[1] = min(load_s / share_s, 4.0)
    features[2] = min((load_s + kernel_s) / share_s, 4.0)
    features[3] = 1.0 if load_s + 0.5 * kernel_s > share_s else 0.0
    features[4] = traffic
    features[5] = min(load_s / share_s, 3.0) * traffic
    features[6] = min(weights, 3.0)
    features[7] = 1.0 if weights > 0.9 else 0.0
    features[8] = 1.0 if problem.sent_bytes[kernel] <= problem.sent_bytes[kernel - 1] else 0.0
    features[9] = min(most + 2.0 * (entered + here), 3.0)
    features[10] = 1.0 if max(most, here) + 2.0 * (entered + after) > 0.9 else 0.0
    features[11] = min(2.0 * here, 3.0)
