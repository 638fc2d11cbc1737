"""Random branchy graphs with ops and sizes like those of the zoo's training graphs.

Distributions, each drawn once per graph unless stated otherwise:

* family: uniform over :data:`FAMILIES`; ops: log-uniform in 50 … 2,000;
* activations: a base size log-uniform in 6,000 … 400,000 elements (the middle 80 % of the
  training graphs' medians) times the structure's octaves; one matrix op in seven widens or
  narrows by 4;
* matrix ops: a share of 0.15 … 0.5 of the ops that read one result, and all that restore the
  size; an inner dimension log-uniform in 64 … 2,000, and weights log-uniform in 4,000 …
  2,400,000 elements (the same middles); each op is within an octave of both; FLOPs are
  2 x elements x inner dimension;
* data movement: a share of 0 … 0.25; the rest are vector ops, with types from a Dirichlet draw
  around their frequencies in the training graphs;
* joins: element-wise or a product if all sizes agree, else a concatenation; of three and more
  equal results, half are concatenated;
* first ops: a matrix op, or in one graph of five, look-ups in tables of 100,000 … 20,000,000
  elements.

Activations are scaled down if one chip could not store those of the whole graph, so that a
slicing of the default order always fits.

A family is a function ``(dag, rng)`` that adds blocks until the dag is full. The last block may
be cut off; :func:`draw_structure` joins the loose ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.model.op_costs import OpSignature, op_cost


@dataclass
class Dag:
    """Ops in a topological order. Adding to a full dag does nothing and returns its last op."""

    num_ops: int
    parents: list[tuple[int, ...]] = field(default_factory=list)  # [N] ascending; none: reads an input
    octave: list[int] = field(default_factory=list)  # [N] the result has 2**octave times the base size
    weight_group: list[int] = field(default_factory=list)  # [N] ops of a group share weights; -1: its own

    @property
    def is_full(self) -> bool:
        return len(self.parents) >= self.num_ops

    def add(self, parents: Sequence[int] = (), octave: int = 0, weight_group: int = -1) -> int:
        if not self.is_full:
            self.parents.append(tuple(sorted(set(parents))))
            self.octave.append(octave)
            self.weight_group.append(weight_group)
        return len(self.parents) - 1

    def run(self, tail: int, length: int, octave: int = 0) -> int:
        """Add a chain of ``length`` ops after ``tail``; returns the last."""
        for _ in range(length):
            tail = self.add([tail], octave)
        return tail

    def sinks(self) -> list[int]:
        read = {parent for parents in self.parents for parent in parents}
        return [op for op in range(len(self.parents)) if op not in read]


Rng = np.random.Generator


def draw_structure(rng: Rng, family: str, num_ops: int) -> Dag:
    """A connected dag of ``num_ops`` ops with one sink."""
    dag = Dag(num_ops - 1)
    FAMILIES[family](dag, rng)
    dag.num_ops = num_ops
    dag.add(dag.sinks(), dag.octave[-1])
    return dag


def log_uniform(rng: Rng, low: float, high: float) -> int:
    """An integer from ``low`` to ``high``, drawn log-uniformly."""
    return round(low * float((high / low) ** rng.random()))


def _chain(dag: Dag, rng: Rng) -> None:
    """A chain with occasional short residual connections."""
    tail = dag.add()
    residual = rng.uniform(0.0, 0.3)
    while not dag.is_full:
        end = dag.run(tail, int(rng.integers(1, 8)))
        tail = dag.add([tail, end]) if rng.random() < residual else end


def _skips(dag: Dag, rng: Rng) -> None:
    """A chain with skip connections, whose log-uniform lengths reach up to 30 % of it."""
    dag.add()
    often = rng.uniform(0.05, 0.5)
    longest = max(3.0, dag.num_ops * rng.uniform(0.02, 0.3))
    while not dag.is_full:
        last = len(dag.parents) - 1
        skip = max(0, last - log_uniform(rng, 2, longest))
        dag.add([last, skip] if rng.random() < often else [last])


def _cells(dag: Dag, rng: Rng) -> None:
    """Random cells as in architecture search; each reads the two cells before it."""
    before, last = dag.add(), dag.add([0])
    blocks, deepest = int(rng.integers(3, 8)), int(rng.integers(2, 5))
    octave = 0
    while not dag.is_full:
        if rng.random() < 0.15:
            octave -= 1
        states = [before, last]
        used: set[int] = set()
        for _ in range(blocks):
            pair = [states[int(i)] for i in rng.choice(len(states), 2, replace=False)]
            used.update(pair)
            ends = [dag.run(state, int(rng.integers(1, deepest + 1)), octave) for state in pair]
            states.append(dag.add(ends, octave))
        loose = [state for state in states[2:] if state not in used]
        before, last = last, dag.add(loose, octave)


def _towers(dag: Dag, rng: Rng) -> None:
    """Parallel towers with own inputs or a shared stem, and occasional joins."""
    num_towers = int(rng.integers(2, 9))
    stem = [dag.add()] if rng.random() < 0.5 else []
    tails = [dag.add(stem) for _ in range(num_towers)]
    joins = rng.uniform(0.0, 0.1)
    while not dag.is_full:
        i = int(rng.integers(num_towers))
        tails[i] = dag.run(tails[i], int(rng.integers(1, 12)))
        if rng.random() < joins:
            other = int(rng.integers(num_towers))
            tails[i] = dag.add([tails[i], tails[other]])


def _unet(dag: Dag, rng: Rng) -> None:
    """Levels that halve the size and then double it, with skip connections between equal sizes."""
    tail = dag.add()
    while not dag.is_full:
        levels = int(rng.integers(2, 6))
        room = dag.num_ops - len(dag.parents)
        block = int(rng.integers(2, max(3, room // (2 * levels))))
        held = []
        for level in range(levels):
            tail = dag.run(tail, block, -level)
            held.append(tail)
        for level in reversed(range(levels)):
            tail = dag.run(dag.add([tail, held[level]], -level), block, -level)


def _encoder_decoder(dag: Dag, rng: Rng) -> None:
    """An encoder whose result every block of the decoder reads."""
    memory = dag.run(dag.add(), int(dag.num_ops * rng.uniform(0.2, 0.6)))
    octave = int(rng.integers(-2, 1))
    tail = dag.add([], octave)
    before, behind = (int(n) for n in rng.integers(1, 15, 2))
    while not dag.is_full:
        query = dag.run(tail, before, octave)
        crossed = dag.add([query, dag.run(memory, int(rng.integers(1, 4)))], octave)
        tail = dag.add([tail, dag.run(crossed, behind, octave)], octave)


def _wide(dag: Dag, rng: Rng) -> None:
    """Layers of many parallel branches."""
    tail = dag.add()
    width, length = log_uniform(rng, 4, 64), int(rng.integers(1, 7))
    while not dag.is_full:
        branches = [
            dag.run(dag.add([tail], -2), int(rng.integers(0, length)), -2)
            for _ in range(int(rng.integers(width // 2, width + 1)))
        ]
        tail = dag.add(branches)


def _recurrent(dag: Dag, rng: Rng) -> None:
    """Unrolled recurrent layers: each step reads the layer's previous step, with the same weights."""
    layers, gates = int(rng.integers(1, 6)), int(rng.integers(1, 5))
    states: list[int | None] = [None] * layers
    while not dag.is_full:
        below = dag.add([], -2)
        for layer, state in enumerate(states):
            reads = [below] if state is None else [below, state]
            mixed = dag.add(reads, -2)
            ends = [dag.run(dag.add([mixed], -2, layer * gates + gate), 1, -2) for gate in range(gates)]
            below = states[layer] = dag.add(ends, -2)


def _mixed(dag: Dag, rng: Rng) -> None:
    """Two to four other families in sequence."""
    names = [name for name in FAMILIES if name != "mixed"]
    room = dag.num_ops
    shares = rng.dirichlet(np.full(int(rng.integers(2, 5)), 3.0))
    for end in np.cumsum(shares):
        begin = len(dag.parents)
        part = Dag(max(8, round(room * end) - begin))
        FAMILIES[names[int(rng.integers(len(names)))]](part, rng)
        tails = dag.sinks()
        for parents, octave, group in zip(part.parents, part.octave, part.weight_group, strict=True):
            own = [begin + parent for parent in parents]
            dag.add(own or tails, octave, group)


FAMILIES: Final[Mapping[str, Callable[[Dag, Rng], None]]] = MappingProxyType(
    {
        "chain": _chain,
        "skips": _skips,
        "cells": _cells,
        "towers": _towers,
        "unet": _unet,
        "encoder_decoder": _encoder_decoder,
        "wide": _wide,
        "recurrent": _recurrent,
        "mixed": _mixed,
    }
)


FEWEST_OPS: Final = 50
MOST_OPS: Final = 2000
DTYPE: Final = "bfloat16"
# Half the memory of an mcm-6x6 chip, in elements of 2 bytes. The other half is for kernels that
# need more at once.
MOST_LIVE_ELEMENTS: Final = 8_000_000

# Relative frequencies of op types in the training graphs.
UNARY: Final = {
    "Add": 12.0, "Mul": 7.0, "Relu": 3.0, "LayerNormalization": 2.9, "Sigmoid": 2.8, "Div": 1.8,
    "Softmax": 1.6, "Gelu": 1.5, "Sub": 1.4, "Tanh": 1.1, "InstanceNormalization": 0.7, "Max": 1.5,
}  # fmt: skip
JOINS: Final = {"Add": 25.0, "Mul": 13.0, "Sub": 1.4, "Max": 3.1, "MatMul": 4.0}
MOVES: Final = {"Transpose": 7.7, "Slice": 2.6, "Pad": 0.5, "Gather": 4.9}
MATRIX: Final = {"MatMul": 14.7, "Conv": 9.5}
READ_A_VECTOR: Final = ("Add", "Mul", "Div", "Sub")  # unary here: the second operand is a small weight


def generate_graph(seed: int, *, family: str | None = None, num_ops: int | None = None) -> Graph:
    """The graph of a seed; ``family`` and ``num_ops`` are drawn if not given."""
    rng = np.random.default_rng(seed)
    drawn_family = list(FAMILIES)[int(rng.integers(len(FAMILIES)))]
    drawn_ops = log_uniform(rng, FEWEST_OPS, MOST_OPS)
    family, num_ops = family or drawn_family, num_ops or drawn_ops
    dag = draw_structure(rng, family, num_ops)
    style = _draw_style(rng)
    ops = _draw_ops(rng, style, dag)
    return _build(rng, f"{family}_{num_ops}_{seed}", style, dag, ops)


@dataclass(frozen=True, eq=False)
class _Style:
    """Parameters common to the ops of one graph."""

    base_elements: float
    inner: float
    weight_elements: float
    matrix_share: float
    move_share: float
    looks_up: bool
    unary: FloatArray  # shares of UNARY
    joins: FloatArray  # shares of JOINS
    moves: FloatArray  # shares of MOVES
    matrix: str


@dataclass(frozen=True)
class _DrawnOp:
    op_type: str
    elements: float  # of its result, before scaling
    is_fixed: bool  # False: the size is off, and a next op that reads only this one restores it


def _draw_style(rng: Rng) -> _Style:
    return _Style(
        base_elements=log_uniform(rng, 6e3, 4e5),
        inner=log_uniform(rng, 64, 2000),
        weight_elements=log_uniform(rng, 4e3, 2.4e6),
        matrix_share=rng.uniform(0.15, 0.5),
        move_share=rng.uniform(0.0, 0.25),
        looks_up=bool(rng.random() < 0.2),
        unary=_draw_shares(rng, UNARY),
        joins=_draw_shares(rng, JOINS),
        moves=_draw_shares(rng, MOVES),
        matrix=_pick(rng, MATRIX, _shares(MATRIX)),
    )


def _draw_shares(rng: Rng, weights: dict[str, float]) -> FloatArray:
    shares: FloatArray = rng.dirichlet(len(weights) * _shares(weights))
    return shares


def _shares(weights: dict[str, float]) -> FloatArray:
    return np.array(list(weights.values()), dtype=np.float64) / sum(weights.values())


def _draw_ops(rng: Rng, style: _Style, dag: Dag) -> list[_DrawnOp]:
    """Types and sizes in order, because the size of an op depends on the results it reads."""
    ops: list[_DrawnOp] = []
    for parents, octave, group in zip(dag.parents, dag.octave, dag.weight_group, strict=True):
        wanted = style.base_elements * 2.0**octave
        read = [ops[parent] for parent in parents]
        if not read:
            ops.append(_DrawnOp("Gather" if style.looks_up else style.matrix, wanted, True))
        elif group >= 0:
            ops.append(_DrawnOp(style.matrix, wanted, True))
        elif len(read) > 1:
            ops.append(_join(rng, style, read))
        else:
            has_size = read[0].is_fixed and octave == dag.octave[parents[0]]
            ops.append(_step(rng, style, read[0], wanted, has_size))
    return ops


def _join(rng: Rng, style: _Style, read: list[_DrawnOp]) -> _DrawnOp:
    sizes = {op.elements for op in read}
    if len(sizes) > 1 or (len(read) > 2 and rng.random() < 0.5):
        return _DrawnOp("Concat", sum(op.elements for op in read), False)
    op_type = "Sum" if len(read) > 2 else _pick(rng, JOINS, style.joins)
    return _DrawnOp(op_type, read[0].elements, read[0].is_fixed)


def _step(rng: Rng, style: _Style, read: _DrawnOp, wanted: float, has_size: bool) -> _DrawnOp:
    """An op that reads one result; a matrix op restores a wrong size."""
    draw = rng.random()
    if not has_size or draw < style.matrix_share:
        is_odd = rng.random() < 1.0 / 7.0
        return _DrawnOp(
            style.matrix, wanted * float(rng.choice([0.25, 4.0])) if is_odd else wanted, not is_odd
        )
    if draw < style.matrix_share + style.move_share:
        return _DrawnOp(_pick(rng, MOVES, style.moves), read.elements, True)
    return _DrawnOp(_pick(rng, UNARY, style.unary), read.elements, True)


def _pick(rng: Rng, names: dict[str, float], shares: FloatArray) -> str:
    return list(names)[int(rng.choice(len(names), p=shares))]


def _build(rng: Rng, name: str, style: _Style, dag: Dag, ops: list[_DrawnOp]) -> Graph:
    live = _most_live(dag, [op.elements for op in ops])
    scale = min(1.0, MOST_LIVE_ELEMENTS / live)
    sizes = [max(1, round(op.elements * scale)) for op in ops]
    owner = _weight_owners(dag)
    inner = np.rint(style.inner * 2.0 ** rng.uniform(-1, 1, len(ops)))[owner]
    matrix_weight = np.rint(style.weight_elements * 2.0 ** rng.uniform(-1, 1, len(ops)))
    builder = GraphBuilder(name)
    for i, (op, parents) in enumerate(zip(ops, dag.parents, strict=True)):
        reads: list[tuple[str, int | None]] = [(f"t{parent}", None) for parent in parents]
        if not parents:
            builder.add_tensor(f"input{i}", sizes[i], DTYPE, "input")
            reads.append((f"input{i}", None))
        weight_elements = 0
        if op.op_type in MATRIX and len(parents) < 2:
            weight_elements = int(matrix_weight[i])
        elif not parents:
            weight_elements = log_uniform(rng, 1e5, 2e7)
        elif op.op_type in READ_A_VECTOR and len(parents) == 1:
            weight_elements = round(style.inner)
        if weight_elements:
            if owner[i] == i:
                builder.add_tensor(f"w{i}", weight_elements, DTYPE, "weight")
            # A look-up touches the rows it returns.
            reads.append((f"w{owner[i]}", sizes[i] if op.op_type == "Gather" else None))
        shapes = tuple((sizes[parent],) for parent in parents) or ((sizes[i],),)
        cost = op_cost(OpSignature(op.op_type, shapes, ((sizes[i],),), {}))
        builder.add_op(
            f"op{i}",
            op.op_type,
            cost.op_class,
            flops=2.0 * sizes[i] * inner[i] if op.op_type in MATRIX else cost.flops,
            dtype=DTYPE,
            reads=reads,
            writes=[(f"t{i}", sizes[i], DTYPE)],
        )
    builder.mark_output(f"t{len(ops) - 1}")
    return builder.build()


def _weight_owners(dag: Dag) -> list[int]:
    """[N] the first op of each op's weight group; the op itself if it shares no weights."""
    first: dict[int, int] = {}
    return [first.setdefault(group, i) if group >= 0 else i for i, group in enumerate(dag.weight_group)]


def _most_live(dag: Dag, elements: list[float]) -> float:
    """Most elements alive at once in op order, plus twice the elements of graph inputs and output."""
    last = list(range(len(elements)))
    for op, parents in enumerate(dag.parents):
        for parent in parents:
            last[parent] = op
    change = np.zeros(len(elements) + 1)
    np.add.at(change, np.arange(len(elements)), elements)
    np.add.at(change, np.array(last) + 1, -np.array(elements))
    held = (
        sum(size for size, parents in zip(elements, dag.parents, strict=True) if not parents) + elements[-1]
    )
    return float(np.cumsum(change).max()) + 2.0 * held
