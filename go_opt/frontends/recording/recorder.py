"""Collects the ops of a traced program, drops dead ones and builds the graph."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

from go_opt.errors import ModelError
from go_opt.frontends.recording.states import FoundStates
from go_opt.model.bindings import Bindings
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import OP_CLASSES, Graph, Precision, UnknownOp
from go_opt.model.op_costs import OpCost
from go_opt.model.rule import Rule
from go_opt.model.rules.views import Steps, rule_of_views, viewed_steps

Read = tuple[str, int | None]  # tensor and elements touched; None: all
MAX_OPS: Final = 1_000_000
Result = tuple[tuple[int, ...], str]  # shape and dtype


@dataclass(frozen=True)
class RecordedOp:
    """The arguments of :meth:`GraphBuilder.add_op`."""

    name: str
    op_type: str
    op_class: str
    flops: float
    dtype: str
    reads: tuple[Read, ...]
    writes: tuple[tuple[str, int, str], ...]
    unknown: tuple[UnknownOp, ...] = ()  # itself or ops inside, if no rule has their types
    rule: tuple[Rule, tuple[str, ...]] | None = None  # with the tensors of its operands


def live_ops(ops: Sequence[RecordedOp], wanted: Iterable[str]) -> list[RecordedOp]:
    """The ops on which the wanted tensors depend, in their order."""
    needed = set(wanted)
    live = []
    for op in reversed(ops):
        if any(tensor in needed for tensor, _, _ in op.writes):
            live.append(op)
            needed.update(tensor for tensor, _ in op.reads)
    return live[::-1]


class Body(NamedTuple):
    """Ops that are part of one, summed up."""

    cost: OpCost  # the class of the most demanding op, data movement if there is none; FLOPs of all
    dtype: str | None  # of the op with most FLOPs
    reads: list[Read]  # of what none of the ops writes
    unknown: tuple[UnknownOp, ...]  # ops whose types no rule has

    @staticmethod
    def of(ops: Sequence[RecordedOp], returned: Sequence[Read]) -> Body:
        """The ops of a body that returns tensors, which are read even if none of its ops does so."""
        op_class = min((op.op_class for op in ops), key=OP_CLASSES.index, default=OP_CLASSES[-1])
        heaviest = max(ops, key=lambda op: op.flops, default=None)
        inside = {tensor for op in ops for tensor, _, _ in op.writes}
        return Body(
            OpCost(op_class, sum(op.flops for op in ops), ()),
            None if heaviest is None else heaviest.dtype,
            [
                read
                for reads in (*(op.reads for op in ops), returned)
                for read in reads
                if read[0] not in inside
            ],
            tuple(row for op in ops for row in op.unknown),
        )


@dataclass(frozen=True)
class Value:
    """The value of a variable: a tensor, a view or part of one, or a literal."""

    shape: tuple[int, ...]
    dtype: str
    kind: Literal["activation", "weight", "input", "literal"]
    tensor: str | None  # None for a literal, which no kernel reads from memory
    touched: int | None = None  # elements of the tensor in this value; None: all
    scalar: Any = None  # the number of a literal, if known
    view: str = ""  # how a view of a weight differs from the weight
    steps: Steps = ()

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def is_constant(self) -> bool:
        return self.kind in ("weight", "literal")

    def viewed(self, result: Result, how: str, places: Sequence[int] | None = None) -> Value:
        """The same tensor in another shape or type; ``places`` as for :func:`viewed_steps`."""
        shape, dtype = result
        steps = viewed_steps(self.shape, self.steps, shape, places)
        view = f"{self.view}|{how}" if self.is_constant else ""
        return replace(self, shape=shape, dtype=dtype, view=view, steps=steps)


@dataclass
class Recorder:
    """Ops and source tensors in program order, under unique names."""

    ops: list[RecordedOp] = field(default_factory=list)
    sources: dict[str, tuple[int, str, str]] = field(default_factory=dict)  # (elements, dtype, kind)
    _folded: dict[Any, list[Value]] = field(default_factory=dict)
    _names: set[str] = field(default_factory=set)
    _next_suffix: dict[str, int] = field(default_factory=dict)

    def unique(self, base: str) -> str:
        """``base`` if free, else the first free name of ``base_1``, ``base_2``, …"""
        suffix, name = self._next_suffix.get(base, 0), base
        if suffix:
            name = f"{base}_{suffix}"
        while name in self._names:
            suffix += 1
            name = f"{base}_{suffix}"
        self._next_suffix[base] = suffix + 1
        self._names.add(name)
        return name

    def source(
        self, base: str, shape: tuple[int, ...], dtype: str, kind: Literal["weight", "input"]
    ) -> Value:
        """A tensor that no op produces."""
        name = self.unique(base)
        self.sources[name] = (math.prod(shape), dtype, kind)
        return Value(shape, dtype, kind, name)

    def folded(self, base: str, key: Any, results: Sequence[Result]) -> list[Value]:
        """Weights for results that a compiler computes ahead of time; the same ones for the same key."""
        known = self._folded.get(key)
        if known is None:
            known = [self.source(base, shape, dtype, "weight") for shape, dtype in results]
            if key is not None:
                self._folded[key] = known
        return known

    def op(
        self,
        base: str,
        op_type: str,
        cost: OpCost,
        dtype: str,
        reads: Iterable[Read],
        results: Sequence[Result],
        unknown: tuple[UnknownOp, ...] = (),
    ) -> list[Value]:
        """Record one op; returns the tensors it produces.

        Args:
          unknown: ops inside, whose types no rule has.
        """
        if len(self.ops) >= MAX_OPS:
            raise ModelError(f"the model has more than {MAX_OPS} ops once its loops are unrolled.")
        name = self.unique(base)
        values = [
            Value(shape, result_dtype, "activation", name if len(results) == 1 else f"{name}:{i}")
            for i, (shape, result_dtype) in enumerate(results)
        ]
        self.record(name, op_type, cost, dtype, reads, values, unknown)
        return values

    def body(self, start: int, returned: Sequence[Read]) -> Body:
        """Take the ops from ``start`` on out of the recording; those that nothing depends on do not count."""
        ops = live_ops(self.ops[start:], [tensor for tensor, _ in returned])
        del self.ops[start:]
        return Body.of(ops, returned)

    def record(
        self,
        name: str,
        op_type: str,
        cost: OpCost,
        dtype: str,
        reads: Iterable[Read],
        writes: Iterable[Any],
        unknown: tuple[UnknownOp, ...] = (),
    ) -> None:
        """Record one op under a name that is free; ``writes`` are values, of an importer's own class."""
        written = tuple((str(value.tensor), value.elements, value.dtype) for value in writes)
        unknown += () if cost.is_known else (UnknownOp(name, op_type, float(cost.flops)),)
        flops = float(cost.flops)
        self.ops.append(
            RecordedOp(name, op_type, cost.op_class, flops, dtype, tuple(reads), written, unknown)
        )

    def kernel(
        self,
        base: str,
        op_type: str,
        cost: OpCost,
        dtype: str,
        inputs: Sequence[Value],
        results: Sequence[Result],
        ruled: tuple[str, Mapping[str, Any], Sequence[Value | None], Sequence[tuple[int, ...]]] | None = None,
    ) -> list[Value]:
        """Record an op that reads ``inputs``, with the rule that :meth:`set_rule` finds for ``ruled``."""
        reads: list[Read] = []
        for value, touched in zip(inputs, cost.touched or (None,) * len(inputs), strict=True):
            # Neither literals nor constants of which it touches no element.
            if value.tensor is not None and not (touched == 0 and value.is_constant):
                limits = [limit for limit in (touched, value.touched) if limit is not None]
                reads.append((value.tensor, min(limits, default=None)))
        values = self.op(base, op_type, cost, dtype, reads, results)
        if ruled is not None:
            self.set_rule(*ruled)
        return values

    def set_rule(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[Any],
        written: Sequence[tuple[int, ...]],
    ) -> None:
        """Give the op that was recorded last the sharding rule of the table, if it has one.

        Args:
          inputs: values, of an importer's own class; None for an absent one.
          written: the shapes of its results.
        """
        op = self.ops[-1]
        views = [None if one is None else (one.shape, one.steps if one.tensor else ()) for one in inputs]
        rule = rule_of_views(op_type, views, written, attributes)
        if rule is not None:
            read = {tensor for tensor, _ in op.reads}
            tensors = [one.tensor for one in inputs if one is not None]
            operands = [i for i, tensor in enumerate(tensors) if tensor in read]
            row = rule.of_operands(operands), tuple(str(tensors[i]) for i in operands)
            self.ops[-1] = replace(op, rule=row)

    def build(
        self,
        name: str,
        outputs: Mapping[str, Any],
        found: FoundStates,
        precision: Precision,
        bindings: Bindings,
    ) -> Graph:
        """The graph of all ops that an output or the next value of a state depends on.

        Args:
          outputs: values, of an importer's own class, by names of the model, with which ``found`` names next
            values; a state without one never changes, and one whose next value is a literal is none.
        """
        builder = GraphBuilder(name, precision=precision, bindings=bindings)
        for source, (elements, dtype, kind) in self.sources.items():
            builder.add_tensor(source, elements, dtype, kind)
        for state in found.states:
            following = outputs[state.next].tensor if state.next in outputs else state.read
            if following is not None:
                builder.add_state(state.read, following, state.scope)
        kept = {state.next for state in found.states}
        wanted = [str(value.tensor) for value in outputs.values() if value.kind == "activation"]
        unknown: list[UnknownOp] = []
        for op in live_ops(self.ops, wanted):
            unknown += op.unknown
            builder.add_op(
                op.name,
                op.op_type,
                op.op_class,
                flops=op.flops,
                dtype=op.dtype,
                reads=op.reads,
                writes=op.writes,
            )
            if op.rule is not None:
                builder.set_rule(op.name, *op.rule)
        for output, value in outputs.items():
            if output not in kept and value.kind == "activation":
                builder.mark_output(str(value.tensor))
        return replace(builder.build(), unknown_ops=tuple(unknown), unpaired_states=found.unpaired)

    def varied(self, arguments: Iterable[Value], names: Collection[str]) -> list[Value]:
        """The arguments; those of these names are no constants, which are computed with ahead of time."""
        for name in names:
            elements, dtype, _ = self.sources[name]
            self.sources[name] = (elements, dtype, "input")
        return [replace(value, kind="input") if value.tensor in names else value for value in arguments]


def joined(scope: str, name: str) -> str:
    """A name in a scope, as JAX writes it: ``mlp/dot_general``."""
    return f"{scope}/{name}" if scope and name else scope or name
