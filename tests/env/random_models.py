"""Random small models of ops of many types, all with rules, and random splits of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from go_opt.env.copies.divisions import divisible_factors, state_period, touched_states
from go_opt.env.copies.splits import split_graph
from go_opt.errors import PlanError
from go_opt.model.codecs.graph_json import graph_from_dict, graph_to_dict
from go_opt.model.graph import Graph
from go_opt.model.plan import Split
from tests.shaped import Shape, ShapedBuilder

MATRIX: Final = ("Attention", "Conv", "Gemm", "MatMul")
MOVES: Final = ("Concat", "Gather", "Pad", "Slice", "Split", "Transpose")


class RandomModel:
    """Adds random ops to a builder; ``graph`` has them."""

    def __init__(self, rng: np.random.Generator, num_ops: int) -> None:
        self._rng, self._builder = rng, ShapedBuilder("random", precision="as-is")
        self._shapes: dict[str, Shape] = {}
        self._weights: dict[Shape, str] = {}
        self._read: set[str] = set()
        for i, rank in enumerate(rng.choice((2, 3, 4), 2).tolist()):
            self._source(f"in{i}", self._sizes(rank), "input")
        self._product("first")
        for i in range(1, num_ops):
            self._op(f"op{i}")
        sources = {name: self._builder._sources.get(name, name) for name in self._shapes}  # of views
        read = {sources[name] for name in self._read if name in sources}
        for name in self._shapes:
            if sources[name] not in read or rng.random() < 0.2:
                self._builder.mark_output(name)

    def graph(self) -> Graph:
        return self._builder.build()

    def _sizes(self, rank: int) -> Shape:
        return tuple(self._rng.integers(1, 7, rank).tolist())

    def _source(self, name: str, shape: Shape, kind: str) -> str:
        self._builder.add_tensor(name, shape, "float32", kind)
        if kind == "input":
            self._shapes[name] = shape
        return name

    def _weight(self, *shape: int) -> str:
        """A new weight, or one of the shape that another op has."""
        if shape not in self._weights or self._rng.random() < 0.5:
            self._weights[shape] = self._source(f"w{len(self._builder._shapes)}", shape, "weight")
        return self._weights[shape]

    def _any(self, least: int = 1, most: int = 4) -> tuple[str, Shape]:
        found = [name for name, shape in self._shapes.items() if least <= len(shape) <= most]
        if not found:
            name = f"in{len(self._shapes)}"
            self._source(name, self._sizes(int(self._rng.integers(least, most + 1))), "input")
            return name, self._shapes[name]
        name = found[-1] if self._rng.random() < 0.6 else str(self._rng.choice(found))
        return name, self._shapes[name]

    def _add(
        self, name: str, op_type: str, reads: Sequence[str], results: Sequence[Shape],
        touched: Sequence[int | None] = (), **attributes: Any,
    ) -> None:  # fmt: skip
        op_class = "matrix" if op_type in MATRIX else "data_movement" if op_type in MOVES else "vector"
        self._read |= set(reads)
        writes = [(f"{name}.{i}", shape, "float32") for i, shape in enumerate(results)]
        self._builder.add_op(
            name,
            op_type,
            op_class,
            flops=0 if op_class == "data_movement" else 1000,
            dtype="float32",
            reads=list(zip(reads, touched or [None] * len(reads), strict=True)),
            writes=writes,
            attributes=attributes,
        )
        self._shapes |= {written: shape for written, shape, _ in writes}

    def _op(self, name: str) -> None:
        makers: list[Callable[[str], None]] = [
            self._product, self._product, self._gemm, self._of_two, self._conv, self._conv, self._pool,
            self._element, self._element, self._element, self._mixed, self._transposed, self._joined,
            self._parted, self._reduced, self._looked_up, self._attention, self._view, self._view,
            self._sliced,
        ]  # fmt: skip
        makers[int(self._rng.integers(len(makers)))](name)

    def _product(self, name: str) -> None:
        x, shape = self._any(2)
        columns = int(self._rng.integers(2, 7))
        self._add(name, "MatMul", [x, self._weight(shape[-1], columns)], [(*shape[:-1], columns)])

    def _gemm(self, name: str) -> None:
        x, shape = self._any(2, 2)
        columns = int(self._rng.integers(2, 7))
        reads = [x, self._weight(columns, shape[1]), self._weight(columns)]
        self._add(name, "Gemm", reads, [(shape[0], columns)], transB=1)

    def _of_two(self, name: str) -> None:
        x, shape = self._any(2, 2)
        self._add(name, "Gemm", [x, x], [(shape[0],) * 2], transB=1)

    def _conv(self, name: str) -> None:
        x, (batch, channels, *image) = self._any(4, 4)
        groups = int(self._rng.choice([one for one in (1, 2, 3, channels) if channels % one == 0]))
        features = groups * int(self._rng.integers(1, 4))
        window = [int(self._rng.integers(1, size + 1)) for size in image]
        stride, pad = int(self._rng.integers(1, 3)), int(self._rng.integers(0, 2))
        result = tuple((n + 2 * pad - k) // stride + 1 for n, k in zip(image, window, strict=True))
        reads = [x, self._weight(features, channels // groups, *window)]
        reads += [self._weight(features)] if self._rng.random() < 0.5 else []
        shape = (batch, features, *result)
        self._add(name, "Conv", reads, [shape], group=groups, strides=[stride] * 2, pads=[pad] * 4)

    def _pool(self, name: str) -> None:
        x, (*kept, height, width) = self._any(4, 4)
        window, stride = (min(2, height), min(2, width)), int(self._rng.integers(1, 3))
        result = tuple((n - k) // stride + 1 for n, k in zip((height, width), window, strict=True))
        op_type = str(self._rng.choice(["MaxPool", "AveragePool"]))
        self._add(name, op_type, [x], [(*kept, *result)], kernel_shape=window, strides=[stride] * 2)

    def _element(self, name: str) -> None:
        x, shape = self._any()
        alike = [other for other, one in self._shapes.items() if one == shape]
        other = str(self._rng.choice(alike)) if self._rng.random() < 0.5 else self._weight(shape[-1])
        self._add(name, *(("Add", [x, other]) if self._rng.random() < 0.6 else ("Relu", [x])), [shape])

    def _mixed(self, name: str) -> None:
        x, shape = self._any()
        op_type = str(self._rng.choice(["Softmax", "LayerNormalization"]))
        reads = [x] if op_type == "Softmax" else [x, self._weight(shape[-1])]
        self._add(name, op_type, reads, [shape], axis=-1)

    def _transposed(self, name: str) -> None:
        x, shape = self._any(2)
        perm = self._rng.permutation(len(shape)).tolist()
        self._add(name, "Transpose", [x], [tuple(shape[axis] for axis in perm)], perm=perm)

    def _joined(self, name: str) -> None:
        x, shape = self._any(2)
        axis = int(self._rng.integers(len(shape)))
        result = tuple(size * (1 + (i == axis)) for i, size in enumerate(shape))
        other = str(self._rng.choice([one for one, sizes in self._shapes.items() if sizes == shape]))
        self._add(name, "Concat", [x, other], [result], axis=axis)

    def _parted(self, name: str) -> None:
        x, shape = self._any(2)
        axis = int(self._rng.integers(len(shape)))
        if shape[axis] < 2:
            return
        results = [
            tuple(size if i == axis else one for i, one in enumerate(shape)) for size in (1, shape[axis] - 1)
        ]
        self._add(name, "Split", [x], results, axis=axis)

    def _reduced(self, name: str) -> None:
        x, shape = self._any(2)
        axis = int(self._rng.integers(len(shape)))
        op_type = str(self._rng.choice(["ReduceSum", "ReduceMax", "ReduceMean"]))
        self._add(
            name, op_type, [x], [tuple(1 if i == axis else n for i, n in enumerate(shape))], axes=[axis]
        )

    def _looked_up(self, name: str) -> None:
        x, shape = self._any(1, 2)
        width = int(self._rng.integers(2, 7))
        elements = int(np.prod(shape)) * width
        table = self._weight(elements + 3, width)
        self._add(name, "Gather", [table, x], [(*shape, width)], [elements, None])

    def _attention(self, name: str) -> None:
        x, shape = self._any(3, 3)
        groups = int(self._rng.choice([one for one in (1, 2, 3) if shape[2] % one == 0]))
        heads = {"q_num_heads": groups, "kv_num_heads": groups}
        self._add(name, "Attention", [x, x, x], [shape], **heads)

    def _view(self, name: str) -> None:
        """Two axes become one, or one becomes two."""
        x, shape = self._any()
        axis = int(self._rng.integers(len(shape)))
        if axis + 1 < len(shape) and self._rng.random() < 0.5:
            new = (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
        elif shape[axis] in (4, 6) and len(shape) < 4:
            new = (*shape[:axis], 2, shape[axis] // 2, *shape[axis + 1 :])
        else:
            return
        self._builder.add_view(f"{name}.0", x, new)
        self._shapes[f"{name}.0"] = new

    def _sliced(self, name: str) -> None:
        x, shape = self._any(2)
        axis = int(self._rng.integers(len(shape)))
        if shape[axis] < 3:
            return
        result = tuple(size - 2 * (i == axis) for i, size in enumerate(shape))
        self._add(
            name, "Slice", [x], [result], [int(np.prod(result))], starts=[1], ends=[shape[axis] - 1],
            axes=[axis],
        )  # fmt: skip


def with_states(rng: np.random.Generator, graph: Graph) -> Graph:
    """The graph with some inputs as states, whose next values are as large or join something to them."""
    data = graph_to_dict(graph)
    ops = {row["name"]: row for row in data["ops"]}
    data["states"] = []
    for row in data["tensors"]:
        if row["kind"] != "input" or rng.random() < 0.2:
            continue
        name, elements = row["name"], row["elements"]
        following = [
            one["name"]
            for one in data["tensors"]
            if one["producer"] is not None
            and (
                one["elements"] == elements
                or (
                    (writer := ops[one["producer"]])["op_type"] == "Concat"
                    and name in {read["tensor"] for read in writer["reads"]}
                )
            )
        ]
        row["kind"] = "state"
        next_name = str(rng.choice(following)) if following else name
        data["states"].append({"read": name, "next": next_name, "scope": "sequence"})
    return graph_from_dict(data)


def random_splits(rng: np.random.Generator, graph: Graph) -> tuple[Split, ...]:
    """Random splits that a graph can have, most in the same number of parts; of a state all ops or none."""
    found: tuple[Split, ...] = ()
    usual = int(rng.integers(2, 4))
    for op, factors in enumerate(divisible_factors(graph)):
        row = graph.rule_of(op)
        if row is None or not factors or rng.random() < 0.3:
            continue
        joined = bool(rng.random() < 0.5)
        chosen = rng.permutation(factors)[: 1 if rng.random() < 0.7 else 2].tolist()
        collective = len(chosen) == 1 and bool(rng.random() < 0.5)
        for factor in chosen:
            parts = usual if rng.random() < 0.8 else int(rng.integers(2, 5))
            more = [
                Split(graph.op_names[one], name, parts, is_joined, collective)
                for one, factor_of in _alike(graph, op, factor).items()
                for name, kind, _ in (graph.known_rule_of(one).rule.factors[factor_of],)
                for is_joined in (joined or kind == "reduction",)
            ]
            new = tuple(one for one in more if one not in found)
            try:
                split_graph(graph, (*found, *new))
            except PlanError:  # too few steps for parts that have to end with others
                continue
            found = (*found, *new)
    return found


def _alike(graph: Graph, op: int, factor: int) -> dict[int, int]:
    """The factors of ops that must be divided if one is, since they touch the same states."""
    found, waiting = {op: factor}, [op]
    while waiting:
        one = waiting.pop()
        for state in touched_states(graph).get(one, ()):
            period = state_period(graph, one, found[one], state)
            for other in graph.readers_of(state.read):
                if other not in found:
                    found[other] = next(
                        i
                        for i in divisible_factors(graph)[other]
                        if state_period(graph, other, i, state) == period
                    )
                    waiting.append(other)
    return found
