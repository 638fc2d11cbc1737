"""What sums of gradients leave behind the last backward pass, if they run while backward passes do.

The gradients of a layer are summed once its last backward pass is done, one layer after the other; passes
take no longer for it. Weights of ZeRO are gathered when no pass runs.
"""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import FloatArray
from go_opt.parallel.block import Block
from go_opt.parallel.case import Sums
from go_opt.parallel.configuration import Configuration


def reduction_s(sums: Sums, chosen: Configuration, block: Block, layers: int) -> float:
    """Seconds behind the last pass in which replicas sum gradients and share weights.

    With overlap it is what equal ranks that recompute nothing leave. The backward passes of the last
    micro-batches follow each other stage by stage, as many of each as there are ranks. The most that a layer
    has before it in the queue, and in itself, less the time since its gradients were there, is what is left;
    it grows evenly along a stage, so the first or last layer of a stage decides. ZeRO 2 sums each
    micro-batch, so the last ones of a rank, with one backward pass behind the other, may be what waits.

    Args:
      layers: of the model.
    """
    if not chosen.overlap:
        return sums.all_s
    v, on_rank = chosen.stages_per_device, layers / chosen.pipeline
    behind_s = block.layer_s[0] - _forward_s(block)[0]
    each_s, of_stage = sums.sum_s / on_rank, on_rank / v
    lefts_s = [each_s, of_stage * each_s - (of_stage - 1.0) * behind_s]
    if sums.times == 1:
        earlier_s = (v - 1) * chosen.pipeline * of_stage * behind_s  # passes of all stages but the last one
        lefts_s.append((on_rank - of_stage + 1.0) * each_s - earlier_s)
        lefts_s.append(sums.sum_s - earlier_s - (of_stage - 1.0) * behind_s)
    else:
        last = min(sums.times, chosen.pipeline)
        whole_s = last * sums.sum_s - (last * on_rank - 1.0) * behind_s
        lefts_s.append(last * sums.sum_s / v - (last * of_stage - 1.0) * behind_s)
        lefts_s += [whole_s, whole_s + (sums.times - last) * (sums.sum_s - on_rank * block.layer_s[0])]
    return max(lefts_s) + sums.gathered_s


def least_reduction_s(sums: Sums, chosen: Configuration, block: Block, seconds: FloatArray) -> FloatArray:
    """[K] at most what any schedule leaves, by the number of layers of the first rank.

    The last stage of that rank to end has a last backward pass in one piece, and sums behind it.

    Args:
      seconds: [K] least ones of a micro-batch on the layers of the first rank. With more of them, the step
        is longer, although more is hidden.
    """
    if not chosen.overlap:
        return np.full(len(seconds), sums.all_s)
    v, count = chosen.stages_per_device, np.maximum(np.arange(len(seconds)), 1.0)
    behind_s = np.where(np.isfinite(seconds), seconds, 0.0) / count - min(_forward_s(block))
    left_s = np.maximum(sums.sum_s / count, sums.sum_s / v - (count / v - 1.0) * behind_s)
    return left_s + sums.gathered_s


def _forward_s(block: Block) -> list[float]:
    """Seconds of a layer's forward pass, by what is computed again."""
    return [seconds * block.forward_share(kind) for kind, seconds in enumerate(block.layer_s)]
