"""A graph that is being rewritten: its ops by name, each in words that do not depend on numbers."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from go_opt.common.topological import topological_order
from go_opt.errors import PlanError
from go_opt.model.builder import GraphBuilder
from go_opt.model.dtypes import DTYPES
from go_opt.model.graph import (
    NO_PRODUCER,
    OP_CLASSES,
    TENSOR_KINDS,
    WEIGHT,
    Graph,
    OpRule,
    Rewrite,
    with_op_rules,
)
from go_opt.model.rule import Rule


class Tensor(NamedTuple):
    """What an op reads or writes."""

    elements: int
    dtype: str
    kind: str


@dataclass(frozen=True)
class DraftOp:
    """An op, with its tensors by name."""

    name: str
    op_type: str
    op_class: str
    flops: float
    dtype: str
    reads: tuple[tuple[str, int], ...]  # tensor, elements touched
    writes: tuple[str, ...]
    rule: Rule | None = None
    operands: tuple[str, ...] = ()  # of the rule
    results: tuple[str, ...] = ()
    measured_s: Mapping[str, float] | None = None
    excluded_kinds: tuple[str, ...] = ()

    @property
    def known_rule(self) -> Rule:
        """The rule of an op that has one, as every op that is rewritten."""
        assert self.rule is not None, f"op {self.name!r} has no rule."
        return self.rule


class Draft:
    """The ops and tensors of a graph; rules replace some of them."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        names = graph.tensor_names
        self.tensors = {
            name: Tensor(int(elements), DTYPES[dtype], TENSOR_KINDS[kind])
            for name, elements, dtype, kind in zip(
                names, graph.tensor_elements, graph.tensor_dtype, graph.tensor_kind, strict=True
            )
        }
        self.ops = {name: self._op(op) for op, name in enumerate(graph.op_names)}
        self._place: dict[str, tuple[int, ...]] = {name: (i,) for i, name in enumerate(self.ops)}
        self.producer = {tensor: op.name for op in self.ops.values() for tensor in op.writes}
        self.readers: dict[str, list[str]] = {}
        for op in self.ops.values():
            for tensor, _ in op.reads:
                self.readers.setdefault(tensor, []).append(op.name)
        self.outputs = {names[k] for k in np.flatnonzero(graph.tensor_is_output).tolist()}
        # Of states, the ops that touch them stay as they are.
        self._kept = {names[k] for state in graph.states for k in (state.read, state.next)}
        self._kept |= {name for name, tensor in self.tensors.items() if tensor.elements == 0}

    def copy(self) -> Draft:
        """A draft of its own, with the same ops."""
        made = copy.copy(self)
        made.tensors, made.ops, made._place = dict(self.tensors), dict(self.ops), dict(self._place)
        made.producer = dict(self.producer)
        made.readers = {tensor: [*names] for tensor, names in self.readers.items()}
        return made

    def _op(self, op: int) -> DraftOp:
        graph, names, row = self._graph, self._graph.tensor_names, self._graph.rule_of(op)
        return DraftOp(
            graph.op_names[op],
            graph.op_types[op],
            OP_CLASSES[graph.op_class[op]],
            float(graph.op_flops[op]),
            DTYPES[graph.op_dtype[op]],
            tuple((names[k], touched) for k, touched in graph.reads_of(op)),
            tuple(names[k] for k in graph.outputs_of(op)),
            None if row is None else row.rule,
            () if row is None else tuple(names[k] for k in row.operands),
            () if row is None else tuple(names[k] for k in row.results),
            graph.measured_of(op) or None,
            tuple(graph.excluded_of(op)),
        )

    def is_open(self, op: DraftOp) -> bool:
        """Whether an op may be replaced: it has a rule, no measured seconds, and touches no state."""
        tensors = {*op.writes, *(tensor for tensor, _ in op.reads)}
        return (
            op.rule is not None
            and op.measured_s is None
            and len(op.writes) == 1
            and self._kept.isdisjoint(tensors)
        )

    def in_order(self, names: Iterable[str]) -> list[str]:
        """Ops in the order of the graph."""
        return sorted(names, key=self._place.__getitem__)

    def topological(self) -> list[str]:
        """All ops, each behind those that write what it reads."""
        names = list(self.ops)
        place = {name: i for i, name in enumerate(names)}
        after = [
            sorted({place[reader] for tensor in op.writes for reader in self.readers.get(tensor, ())})
            for op in self.ops.values()
        ]
        return [names[i] for i in topological_order(after, names)]

    def only_reader(self, tensor: str) -> str | None:
        """The op that alone reads a tensor; None if there are others, or the host reads it."""
        readers = self.readers.get(tensor, [])
        return readers[0] if len(readers) == 1 and tensor not in self.outputs else None

    def is_constant(self, tensor: str) -> bool:
        """Whether a tensor is a weight of floating-point numbers."""
        return self.tensors[tensor].kind == TENSOR_KINDS[WEIGHT] and "float" in self.tensors[tensor].dtype

    def replace(self, old: Sequence[str], new: Sequence[DraftOp], tensors: Mapping[str, Tensor]) -> None:
        """Put ops and tensors in the place of others: one op at that of the last, else of the first."""
        gone, places = [self.ops.pop(name) for name in old], [self._place[name] for name in old]
        place = places[0] if len(new) > 1 else max(places)
        taken = [*(tensors.keys() & self.tensors.keys()), *(op.name for op in new if op.name in self.ops)]
        if taken:
            raise PlanError(f"plan: rewrites: there is a {taken[0][:120]!r} already.", field="rewrites")
        for op in gone:
            for tensor, _ in op.reads:
                self.readers[tensor].remove(op.name)
            for tensor in op.writes:
                del self.producer[tensor]
        self.tensors |= tensors
        for i, op in enumerate(new):
            self.ops[op.name], self._place[op.name] = op, (*place, i)
            for tensor, _ in op.reads:
                self.readers.setdefault(tensor, []).append(op.name)
            self.producer |= dict.fromkeys(op.writes, op.name)

    def graph(self, rewrites: tuple[Rewrite, ...]) -> Graph:
        """The graph with these rewrites."""
        graph = self._graph
        builder = GraphBuilder(graph.name, precision=graph.precision, bindings=graph.bindings)
        names = graph.tensor_names
        kept_states = {names[state.read] for state in graph.states}
        for name, tensor in self.tensors.items():
            if tensor.kind != "activation" and (self.readers.get(name) or name in kept_states):
                builder.add_tensor(name, tensor.elements, tensor.dtype, tensor.kind)
        for op in (self.ops[name] for name in self.in_order(self.ops)):
            builder.add_op(
                op.name,
                op.op_type,
                op.op_class,
                flops=op.flops,
                dtype=op.dtype,
                reads=op.reads,
                writes=[(one, self.tensors[one].elements, self.tensors[one].dtype) for one in op.writes],
                measured_s=op.measured_s or {},
                excluded_kinds=op.excluded_kinds,
            )
        for k in np.flatnonzero(graph.tensor_is_output).tolist():
            builder.mark_output(names[k])
        for state in graph.states:
            builder.add_state(names[state.read], names[state.next], state.scope)
        built = builder.build()
        place = built.tensor_index

        def row(op: DraftOp) -> OpRule | None:
            if op.rule is None:
                return None
            operands = (place.get(name, NO_PRODUCER) for name in op.operands)
            return OpRule(op.rule, tuple(operands), tuple(place[name] for name in op.results))

        return replace(
            with_op_rules(built, [row(self.ops[name]) for name in built.op_names]),
            nodes_without_op=graph.nodes_without_op,
            unknown_ops=graph.unknown_ops,
            unpaired_states=graph.unpaired_states,
            sequences=graph.sequences,
            host_states=graph.host_states,
            rewrites=rewrites,
            sent_fingerprint=graph.fingerprint,
        )


def refused(rewrite: Rewrite, problem: str) -> PlanError:
    """The error of a rewrite that does not fit the graph."""
    named = ", ".join(repr(op[:120]) for op in rewrite.ops[:3])
    return PlanError(f"plan: rewrites: {rewrite.rule} of {named} {problem}.", field="rewrites")


def ops_of(draft: Draft, rewrite: Rewrite) -> list[DraftOp]:
    """The ops that a rewrite names.

    Raises:
      PlanError: one of them is not there, or named twice.
    """
    missing = next((name for name in rewrite.ops if name not in draft.ops), None)
    if missing is not None:
        raise refused(rewrite, f"names op {missing[:120]!r}, which is not there")
    if len({*rewrite.ops}) < len(rewrite.ops):
        raise refused(rewrite, "names an op twice")
    return [draft.ops[name] for name in rewrite.ops]
