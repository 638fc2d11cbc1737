"""Builds a validated :class:`Graph` from ops and tensors named in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType

import numpy as np

from go_opt.common.arrays import frozen
from go_opt.common.topological import topological_order
from go_opt.errors import GraphError
from go_opt.model.bindings import NO_BINDINGS, Bindings
from go_opt.model.dtypes import DTYPES, dtype_code
from go_opt.model.graph import (
    ACTIVATION,
    MAX_ELEMENTS,
    NO_PRODUCER,
    OP_CLASSES,
    STATE,
    TENSOR_KINDS,
    Graph,
    NamedState,
    OpRule,
    Precision,
    Scope,
    State,
    by_kind,
    check_number,
    with_op_rules,
)
from go_opt.model.rule import Rule
from go_opt.model.states import WRITES_A_PART, Paths, check_scope

MAX_FLOPS = 1e30  # the sum over ops must stay finite and exact enough to compare


@dataclass(slots=True)
class _Op:
    name: str
    op_type: str
    op_class: int
    flops: float
    dtype: int
    reads: list[tuple[str, int | None]]
    writes: tuple[str, ...]
    measured_s: Mapping[str, float]
    excluded_kinds: tuple[str, ...]


@dataclass(slots=True)
class _Tensor:
    name: str
    elements: int
    dtype: int
    kind: int
    producer: int
    is_output: bool = False
    readers: dict[int, int] = field(default_factory=dict)  # op -> elements touched


class GraphBuilder:
    """Collects ops and tensors, then validates and freezes them.

    Names may be used before they are defined. :meth:`build` raises
    :class:`GraphError` with one sentence that names the faulty op.
    """

    def __init__(
        self, name: str, *, precision: Precision = "native", bindings: Bindings = NO_BINDINGS
    ) -> None:
        self._name = name
        self._precision, self._bindings = precision, bindings
        self._ops: list[_Op] = []
        self._op_names: set[str] = set()
        self._tensors: dict[str, _Tensor] = {}
        self._outputs: list[str] = []
        self._rules: dict[str, tuple[Rule, Sequence[str], Sequence[str] | None]] = {}
        self._states: list[NamedState] = []

    def add_tensor(self, name: str, elements: int, dtype: str, kind: str) -> None:
        """Add a weight, an input or a state, which no op produces."""
        if kind not in TENSOR_KINDS or TENSOR_KINDS.index(kind) == ACTIVATION:
            raise GraphError(f"tensor {name!r}: kind must be 'weight', 'input' or 'state', not {kind!r}.")
        self._define(name, elements, dtype, TENSOR_KINDS.index(kind), NO_PRODUCER)

    def add_op(
        self,
        name: str,
        op_type: str,
        op_class: str,
        *,
        flops: float,
        dtype: str,
        reads: Iterable[tuple[str, int | None]],
        writes: Sequence[tuple[str, int, str]],
        measured_s: Mapping[str, float] = MappingProxyType({}),
        excluded_kinds: Iterable[str] = (),
    ) -> None:
        """Add an op.

        Args:
          flops: floating-point operations per execution.
          reads: ``(tensor, elements touched)``; ``None`` touches the whole tensor.
          writes: ``(tensor, elements, dtype)`` of each tensor the op produces.
          measured_s: seconds by chip kind, which replace the modelled cost of the op.
          excluded_kinds: chip kinds that cannot run the op.
        """
        if not name:
            raise GraphError(f"an op of type {op_type!r} has an empty name.")
        if name in self._op_names:
            raise GraphError(f"op {name!r} is defined twice.")
        self._op_names.add(name)
        if op_class not in OP_CLASSES:
            raise GraphError(
                f"op {name!r}: op_class must be one of {', '.join(OP_CLASSES)}, not {op_class!r}."
            )
        check_number(f"op {name!r}: flops", flops, MAX_FLOPS)
        for kind, seconds in measured_s.items():
            check_number(f"op {name!r}: measured_s of {kind!r}", seconds, MAX_FLOPS)
        op = _Op(
            name,
            op_type,
            OP_CLASSES.index(op_class),
            float(flops),
            dtype_code(dtype, field=f"op {name!r}"),
            list(reads),
            tuple(tensor for tensor, _, _ in writes),
            dict(measured_s),
            tuple(excluded_kinds),
        )
        for tensor, elements, tensor_dtype in writes:
            self._define(tensor, elements, tensor_dtype, ACTIVATION, len(self._ops))
        self._ops.append(op)

    def set_rule(
        self, op: str, rule: Rule, operands: Sequence[str], results: Sequence[str] | None = None
    ) -> None:
        """Set the sharding rule of an op, and the tensors of its operands and results: all that it writes."""
        self._rules[op] = rule, operands, results

    def mark_output(self, name: str) -> None:
        """Declare that the host reads this tensor after every inference."""
        self._outputs.append(name)

    def add_state(self, read: str, next: str, scope: Scope) -> None:
        """Make a weight or an input a state, whose value in the next step is the tensor ``next``.

        The host does not send it, and does not read its next value unless that is marked as an output.
        """
        check_scope(scope, f"state {read!r}")
        self._states.append(NamedState(read, next, scope))

    def build(self, tensor_order: Sequence[str] = ()) -> Graph:
        """Validate, drop weights and inputs that nothing reads, sort topologically, and freeze.

        Args:
          tensor_order: names of the first tensors of the graph; others follow in the order of definition.
        """
        if not self._ops:
            raise GraphError(f"graph {self._name!r} has no ops.")
        self._states = [self._computed(state) for state in self._states]
        for i, op in enumerate(self._ops):
            for tensor_name, touched in op.reads:
                self._add_reader(i, op, tensor_name, touched)
        for output in self._outputs:
            self._find(output, f"graph output {output!r}").is_output = True
        self._check_states()
        paths = cache(self._paths)
        writes = [self._connect(state, paths) for state in self._states]
        order = topological_order(self._successors(), [op.name for op in self._ops])
        graph = self._freeze(order, {name: i for i, name in enumerate(tensor_order)})
        place = graph.tensor_index
        states = (
            State(place[state.read], place[state.next], state.scope, *write)
            for state, write in zip(self._states, writes, strict=True)
        )
        graph = replace(graph, states=tuple(sorted(states)))
        return with_op_rules(graph, self._op_rules(graph))

    def _check_states(self) -> None:
        read = [state.read for state in self._states]
        for tensor in self._tensors.values():
            if tensor.kind == STATE and tensor.name not in read:
                raise GraphError(f"state {tensor.name!r} has no next value.", field="states")
        if twice := next((name for name in read if read.count(name) > 1), None):
            raise GraphError(f"state {twice!r} has two next values.", field="states")

    def _computed(self, state: NamedState) -> NamedState:
        """A state whose next value is an input, weight or other state gets it by a copy."""
        read, following, _ = state
        source = self._tensors.get(following)
        if source is None or following == read or source.producer != NO_PRODUCER:
            return state
        name, dtype = f"copy of {following} to {read}", DTYPES[source.dtype]
        reads, writes = [(following, None)], [(name, source.elements, dtype)]
        self.add_op(name, "Identity", "data_movement", flops=0.0, dtype=dtype, reads=reads, writes=writes)
        return state._replace(next=name)

    def _paths(self) -> Paths:
        """The paths between ops that states put in order."""
        old = [self._find(state.read, f"state {state.read!r}") for state in self._states]
        new = [self._find(state.next, f"state {state.next!r}") for state in self._states]
        return Paths(
            self._successors(), (op for a, b in zip(old, new, strict=True) for op in (*a.readers, b.producer))
        )

    def _connect(self, state: NamedState, paths: Callable[[], Paths]) -> tuple[bool, int, int]:
        """Make the ops that touch a state readers of it, and put them in order.

        Returns the last fields of :class:`State`: how its next value is written.
        """
        what = f"state {state.read!r}"
        old, new = self._find(state.read, what), self._find(state.next, what)
        if old.producer != NO_PRODUCER:
            raise GraphError(f"{what} is computed by op {self._ops[old.producer].name!r}.", field="states")
        old.kind = STATE
        if new is old:
            return True, 0, 1
        if new.dtype != old.dtype:
            raise GraphError(f"{what} and its next value {state.next!r} differ in type.", field="states")
        op = new.producer
        writer, operands = self._ops[op], [self._find(name, what) for name, _ in self._ops[op].reads]
        of_part = old.readers.get(op, 0) > 0 and writer.op_type in WRITES_A_PART
        others = set(old.readers) - {op, *(new.readers if of_part else ())}
        late, buffers = paths().late(op, others) if others else ([], 1)
        in_place, written = of_part and buffers == 1, new.elements
        if in_place:
            largest = max((one.readers[op] for one in operands if one is not old), default=0)
            grown = new.elements - old.elements
            written = min(grown if grown > 0 else largest, new.elements)
        for reader in (op, *(new.readers if in_place else ())):
            old.readers.setdefault(reader, 0)
        for reader in late:
            name = f"{self._ops[reader].name} before {new.name}"
            self._define(name, 0, DTYPES[old.dtype], ACTIVATION, reader)
            self._tensors[name].readers[op] = 0
            paths().add(reader, op)
        return in_place, written, buffers

    def _define(self, name: str, elements: int, dtype: str, kind: int, producer: int) -> None:
        if name in self._tensors:
            raise GraphError(f"tensor {name!r} is defined twice.")
        check_number(f"tensor {name!r}: elements", elements, MAX_ELEMENTS)
        code = dtype_code(dtype, field=f"tensor {name!r}")
        self._tensors[name] = _Tensor(name, int(elements), code, kind, producer)

    def _find(self, name: str, reader: str) -> _Tensor:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise GraphError(f"{reader} reads tensor {name!r}, which nothing defines.")
        return tensor

    def _add_reader(self, i: int, op: _Op, tensor_name: str, touched: int | None) -> None:
        tensor = self._find(tensor_name, f"op {op.name!r}")
        if touched is None:
            touched = tensor.elements
        check_number(f"op {op.name!r}: elements read of {tensor_name!r}", touched, MAX_ELEMENTS)
        # An op that reads through a broadcasting view names more elements than the source has.
        touched = min(int(touched), tensor.elements)
        tensor.readers[i] = max(touched, tensor.readers.get(i, 0))

    def _successors(self) -> list[list[int]]:
        successors: list[list[int]] = [[] for _ in self._ops]
        for tensor in self._tensors.values():
            if tensor.producer != NO_PRODUCER:
                successors[tensor.producer].extend(tensor.readers)
        return successors

    def _op_rules(self, graph: Graph) -> list[OpRule | None]:
        place, written = graph.tensor_index, {op.name: op.writes for op in self._ops}

        def row(name: str) -> OpRule | None:
            if name not in self._rules:
                return None
            rule, operands, results = self._rules[name]
            tensors = operands, written[name] if results is None else results
            return OpRule(rule, *(tuple(place.get(one, NO_PRODUCER) for one in of) for of in tensors))

        return [row(name) for name in graph.op_names]

    def _freeze(self, order: Sequence[int], rank: Mapping[str, int]) -> Graph:
        ops = [self._ops[i] for i in order]
        position = np.empty(len(order), dtype=np.int64)
        position[list(order)] = np.arange(len(order))
        made = sorted(self._tensors.values(), key=lambda t: rank.get(t.name, len(rank)))
        tensors = [t for t in made if t.producer != NO_PRODUCER or t.readers or t.kind == STATE]
        rows = [sorted((int(position[op]), touched) for op, touched in t.readers.items()) for t in tensors]
        flat = [entry for row in rows for entry in row]
        return Graph(
            name=self._name,
            op_names=tuple(op.name for op in ops),
            op_types=tuple(op.op_type for op in ops),
            op_class=frozen([op.op_class for op in ops], np.int8),
            op_flops=frozen([op.flops for op in ops], np.float64),
            op_dtype=frozen([op.dtype for op in ops], np.int8),
            tensor_names=tuple(t.name for t in tensors),
            tensor_elements=frozen([t.elements for t in tensors], np.int64),
            tensor_dtype=frozen([t.dtype for t in tensors], np.int8),
            tensor_kind=frozen([t.kind for t in tensors], np.int8),
            tensor_producer=frozen(
                [NO_PRODUCER if t.producer == NO_PRODUCER else position[t.producer] for t in tensors],
                np.int32,
            ),
            tensor_is_output=frozen([t.is_output and t.producer != NO_PRODUCER for t in tensors], np.bool_),
            reader_ptr=frozen(np.cumsum([0] + [len(row) for row in rows]), np.int64),
            reader_op=frozen([op for op, _ in flat], np.int32),
            reader_elements=frozen([touched for _, touched in flat], np.int64),
            measured_s=by_kind([op.measured_s for op in ops], np.nan, np.float64),
            excluded=by_kind([dict.fromkeys(op.excluded_kinds, True) for op in ops], False, np.bool_),
            bindings=self._bindings,
            precision=self._precision,
        )
