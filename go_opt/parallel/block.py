"""Seconds and bytes of one layer of one micro-batch, and of what stands at the ends of the model.

A layer's seconds are the larger of the host's and the sum of its kernels, and its collectives: products by
the target's figures, element-wise kernels by the bytes that they move, among them those of adding the
gradients of each micro-batch. Bytes of activations are those of Korthikanti et al. (2022), without fused
attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from go_opt.env import Target
from go_opt.env.gpu.figures import Collective
from go_opt.env.gpu.forms import GpuKernels, Products
from go_opt.errors import TargetError
from go_opt.model.dtypes import DTYPE_BITS, dtype_code
from go_opt.parallel.configuration import RECOMPUTE, Configuration, Transformer

Product = tuple[float, float, float, float]  # batch, rows, inner, columns


@dataclass(frozen=True)
class Machine:
    """Devices of one kind in nodes of equal size; raises TargetError if the target lacks figures of it."""

    target: Target

    def __post_init__(self) -> None:
        name, kinds = self.target.name, self.target.kinds
        if not self.target.levels:
            raise TargetError(
                f"target {name!r} has no levels, which --objective step needs, as dgx-a100-8 has.",
                field="levels",
            )
        if kinds[0].kernels is None or len(kinds) > 1:
            raise TargetError(
                f"target {name!r} needs chips of one kind with kernels for --objective step.",
                field="kinds.kernels",
            )

    @cached_property
    def devices(self) -> int:
        return self.target.num_devices

    @cached_property
    def node(self) -> int:
        """Devices of one node."""
        return self.target.num_chips

    @cached_property
    def memory_bytes(self) -> int:
        """Of a device."""
        return self.target.kinds[0].sram_bytes

    @cached_property
    def host_s_per_layer(self) -> float:
        return self.target.levels[0].host_s_per_layer

    @cached_property
    def element_bytes(self) -> int:
        """Of activations, weights and gradients."""
        return int(DTYPE_BITS[dtype_code(self.target.native_dtype)]) // 8

    @cached_property
    def _kernels(self) -> GpuKernels:
        kind = self.target.kinds[0]
        assert kind.kernels is not None
        return GpuKernels(kind.kernels, kind.sram_bytes_per_s)

    @cached_property
    def _flops_per_s(self) -> float:
        kind, dtype = self.target.kinds[0], self.target.native_dtype
        return float(kind.rates(kind.matrix_flops_per_s, dtype)[dtype_code(dtype)])

    def products_s(self, products: Sequence[Product]) -> float:
        """Seconds of kernels of products, one after the other."""
        batch, rows, inner, columns = np.array(products, np.float64).T
        like = np.ones(len(products))
        given = Products(
            batch, rows, inner, columns, like * self._flops_per_s, like * self.element_bytes, like
        )
        moved = self.element_bytes * batch * (rows * inner + inner * columns + rows * columns)
        return float((self._kernels.figures.start_s + self._kernels.product_s(given, moved)).sum())

    def moved_s(self, num_bytes: float) -> float:
        """Seconds of element-wise kernels that read and write so many bytes."""
        return num_bytes / (self._kernels.figures.memory_share * self._kernels.bytes_per_s)

    def collective_s(self, op: str, num_bytes: float, group: int, stride: int = 1) -> float:
        """Seconds of a collective of every ``stride``-th device, ``group`` of them, on the whole buffer.

        Within a node by the target's figures; among nodes as a ring at the rate of a node, which the groups
        of the devices between share. All devices of a node send their own part of an all-to-all.
        """
        if group == 1:
            return 0.0
        if group * stride <= self.node or len(self.target.levels) == 1:
            return _within_s(self, op, num_bytes, group)
        between = self.target.levels[1]
        steps = 2.0 if op == "all_reduce" else 1.0
        sharing = self.node if op == "all_to_all" else min(self.node, stride)
        nodes = -(-group * stride // self.node)
        moved_s = (group - 1) / group * num_bytes / (between.rate_bytes_per_s / sharing)
        return steps * (moved_s + (nodes - 1) * between.latency_s)

    def sent_s(self, num_bytes: float, reach: int) -> float:
        """Seconds in which a device sends to one ``reach`` devices away; all share the node's network."""
        level = self.target.levels[-1] if reach >= self.node else self.target.levels[0]
        rate = level.rate_bytes_per_s
        if level is not self.target.levels[0]:
            rate /= self.node
        return num_bytes / rate + level.latency_s


@lru_cache(maxsize=65536)
def _within_s(machine: Machine, op: str, num_bytes: float, group: int) -> float:
    """Seconds of a collective within a node."""
    figures = Collective.of_group(machine.target.collectives, op, group)
    if figures is None:
        raise TargetError(f"the target has no [[collectives]] for {op} of {group}.", field="collectives")
    return float(figures.seconds(np.array([num_bytes]), np.array([float(group)]))[0])


Row = tuple[float, float, float]  # by RECOMPUTE: none, attention, full


@dataclass(frozen=True)
class Block:
    """Costs of a device for one micro-batch; rows are of a layer, by what is computed again."""

    forward_s: float  # kernels alone
    backward_s: float
    again_s: Row
    collective_s: Row  # forwards, backwards and again
    host_s: Row  # how much longer the host takes than kernels
    kept_bytes: Row  # activations from the forward to the backward pass
    working_bytes: Row  # beside them, while the layer's backward pass runs
    head_s: float  # the last product, softmax and loss, forwards and backwards
    head_bytes: float

    @cached_property
    def layer_s(self) -> Row:
        """Forwards, again and backwards."""
        rows = zip(self.again_s, self.collective_s, self.host_s, strict=True)
        none, attention, full = (self.forward_s + self.backward_s + sum(row) for row in rows)
        return none, attention, full

    def forward_share(self, recompute: int) -> float:
        """The part of a layer's seconds that its forward pass takes; the host's are divided alike."""
        kernels = self.forward_s + self.backward_s + self.again_s[recompute]
        passes = 3.0 if RECOMPUTE[recompute] == "full" else 2.0
        forward = self.forward_s * (1.0 + self.host_s[recompute] / kernels)
        return (forward + self.collective_s[recompute] / passes) / self.layer_s[recompute]


def block_of(model: Transformer, chosen: Configuration, machine: Machine) -> Block:
    """The costs of a layer by tensor and expert degree, micro-batch and sequence parallelism."""
    tokens, size = float(chosen.micro_batch * model.sequence), machine.element_bytes
    t = chosen.tensor
    everywhere = t if chosen.sequence_parallel else 1  # what of the rest of a layer is divided
    around, scores = _products(model, chosen)
    softmax_s = machine.moved_s(4.5 * size * chosen.micro_batch * model.heads / t * model.sequence**2)
    attention_s = machine.products_s(scores) + softmax_s
    moved = 11.0 * size * tokens * model.hidden / everywhere + size * tokens * _split_elements(model) / t
    outside_s = machine.moved_s(moved)
    forward_s = machine.products_s(around) + outside_s + attention_s
    layer_parameters = (model.attention_parameters + model.mlp_parameters / chosen.expert) / t
    backward_s = machine.products_s([*_gradients(around), *_gradients(scores)])
    backward_s += 2.0 * (outside_s + softmax_s) + machine.moved_s(3.0 * size * layer_parameters)
    again_s = (0.0, attention_s, forward_s)
    passed_s = _tensor_s(model, chosen, machine, tokens) + _expert_s(model, chosen, machine, tokens)
    least_s = chosen.host_s_per_layer
    least_s = machine.host_s_per_layer if least_s is None else least_s
    none, attention, full = (max(0.0, least_s - forward_s - backward_s - again) for again in again_s)
    logits = tokens * model.vocabulary / t
    last: list[Product] = [(1.0, tokens, model.hidden, model.vocabulary / t)]
    inputs = size * tokens * model.hidden / everywhere
    scored = 2.5 * size * chosen.micro_batch * model.heads / t * model.sequence**2
    all_kept = 5.0 * inputs + size * tokens * _kept_elements(model) / t + scored
    return Block(
        forward_s,
        backward_s,
        again_s,
        (2.0 * passed_s, 2.0 * passed_s, 3.0 * passed_s),
        (none, attention, full),
        (all_kept, all_kept - scored, inputs),
        (0.0, scored, all_kept),
        machine.products_s([*last, *_gradients(last)]) + 3.0 * machine.moved_s(3.0 * size * logits),
        3.0 * size * logits,
    )


def message_s(model: Transformer, chosen: Configuration, machine: Machine) -> float:
    """Seconds in which a layer's input goes on to the next rank, or its gradient comes back.

    With sequence parallelism a device has only its part. The interleaved schedule, which has more messages,
    sends parts too, and gathers them within the node (Narayanan et al., 2021).
    """
    if chosen.pipeline == 1:
        return 0.0
    stride = chosen.tensor * chosen.expert * chosen.data
    is_within, gathered_s = chosen.pipeline * stride <= machine.node, 0.0
    num_bytes = float(machine.element_bytes * chosen.micro_batch * model.sequence * model.hidden)
    if chosen.schedule == "interleaved" and not chosen.sequence_parallel and not is_within:
        gathered_s = machine.collective_s("all_gather", num_bytes, chosen.tensor)
        num_bytes /= chosen.tensor
    elif chosen.sequence_parallel:
        num_bytes /= chosen.tensor
    return machine.sent_s(num_bytes, stride if is_within else machine.node) + gathered_s


def _products(model: Transformer, chosen: Configuration) -> tuple[list[Product], list[Product]]:
    """The products of a layer on one device, and those of its attention scores."""
    tokens, t = float(chosen.micro_batch * model.sequence), chosen.tensor
    depth = model.hidden // model.heads
    columns = (model.hidden + 2 * max(model.kv_columns, t * depth if t > model.kv_heads else 0)) / t
    local = model.experts / chosen.expert
    rows = tokens * model.experts_per_token / local
    first = (2 if model.gated else 1) * model.mlp / t
    around: list[Product] = [
        (1.0, tokens, model.hidden, columns),
        (1.0, tokens, model.hidden / t, model.hidden),
        (local, rows, model.hidden, first),
        (local, rows, model.mlp / t, model.hidden),
    ]
    if model.experts > 1:
        around.append((1.0, tokens, model.hidden, model.experts))
    heads = chosen.micro_batch * model.heads / t
    scores: list[Product] = [
        (heads, model.sequence, depth, model.sequence),
        (heads, model.sequence, model.sequence, depth),
    ]
    return around, scores


def _gradients(products: list[Product]) -> list[Product]:
    """Of each product, that of its left and of its right operand."""
    found: list[Product] = []
    for batch, rows, inner, columns in products:
        found += [(batch, rows, columns, inner), (batch, inner, rows, columns)]
    return found


def _split_elements(model: Transformer) -> float:
    """Elements a token that element-wise kernels move where the layer is divided: heads, activation."""
    attention = 2.0 * (model.hidden + 2 * model.kv_columns)
    return attention + (3.0 if model.gated else 2.0) * model.mlp * model.experts_per_token


def _kept_elements(model: Transformer) -> float:
    """Elements a token that are kept where the layer is divided: queries, keys, values, results, MLP."""
    attention = 2.0 * model.hidden + 2 * model.kv_columns
    kept = attention + (3.0 if model.gated else 2.0) * model.mlp * model.experts_per_token
    return kept + (model.hidden * model.experts_per_token if model.experts > 1 else 0.0)


def _tensor_s(model: Transformer, chosen: Configuration, machine: Machine, tokens: float) -> float:
    """Behind attention and MLP each an all-reduce, or with sequence parallelism its two halves."""
    ops = ("all_gather", "reduce_scatter") if chosen.sequence_parallel else ("all_reduce",)
    num_bytes = machine.element_bytes * tokens * model.hidden
    return 2.0 * sum(machine.collective_s(op, num_bytes, chosen.tensor) for op in ops)


def _expert_s(model: Transformer, chosen: Configuration, machine: Machine, tokens: float) -> float:
    """Tokens go to their experts and come back."""
    num_bytes = machine.element_bytes * tokens * model.hidden * model.experts_per_token
    return 2.0 * machine.collective_s("all_to_all", num_bytes, chosen.expert, chosen.tensor)
