"""Control flow of jaxprs: loops are unrolled, a branch costs as much as its most expensive arm."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from go_opt.errors import ModelError
from go_opt.frontends.recording.recorder import Read, RecordedOp, Result, Value, joined, live_ops
from go_opt.model.graph import OP_CLASSES
from go_opt.model.op_costs import OpCost

if TYPE_CHECKING:
    from go_opt.frontends.jax.walk import Walker

_Handler = Callable[["Walker", Mapping[str, Any], list[Value], list[Result], str], list[Value]]

_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
    "ne": operator.ne,
}


def _scan(
    walker: Walker, params: Mapping[str, Any], inputs: list[Value], results: list[Result], scope: str
) -> list[Value]:
    """Unroll a scan: step t reads slice t of each scanned input; a Concat stacks each output."""
    loop, length = _loop_scope(walker, "scan", params["length"], scope)
    consts, carry, scanned = _scan_groups(params, inputs)
    num_carry = len(carry)
    elements = [(value.shape[1:], value.dtype) for value in scanned]
    rows: dict[int, list[Value]] = {}
    for step in reversed(range(length)) if params["reverse"] else range(length):
        here = f"{loop}/{step}"
        parts = [
            _slice(walker, value, step, result, here) for value, result in zip(scanned, elements, strict=True)
        ]
        outputs = walker.run(params["jaxpr"], [*consts, *carry, *parts], here)
        carry, rows[step] = outputs[:num_carry], outputs[num_carry:]
    stacked = [
        _stack(walker, [rows[step][i] for step in range(length)], result, loop)
        for i, result in enumerate(results[num_carry:])
    ]
    return [*carry, *stacked]


def _scan_groups(params: Mapping[str, Any], inputs: list[Value]) -> tuple[list[Value], ...]:
    """The constants, the first carry and the scanned values among the inputs."""
    # JAX 0.12 describes the groups by a tree, earlier releases by their lengths.
    if "ft_in" in params:
        return tuple(list(group) for group in params["ft_in"].update(inputs).unpack())
    carry_start = params["num_consts"]
    carry_end = carry_start + params["num_carry"]
    return inputs[:carry_start], inputs[carry_start:carry_end], inputs[carry_end:]


def _slice(walker: Walker, value: Value, step: int, result: Result, scope: str) -> Value:
    """Step ``step`` of a scanned value: a literal, part of an input, a separate weight, or a Slice op."""
    shape, dtype = result
    part = replace(value, shape=shape, dtype=dtype, steps=value.steps and value.steps[1:])
    if value.kind == "literal":
        return part
    if value.kind == "weight":
        # A separate weight: a chip that runs some of the steps then stores only their slices.
        return walker.recorder.folded(
            f"{value.tensor}[{step}]", ("step", value.tensor, value.view, step), [result]
        )[0]
    if value.kind == "input":
        return replace(part, touched=part.elements)
    cost = OpCost("data_movement", 0.0, (part.elements,))
    read = (str(value.tensor), part.elements)
    found = walker.recorder.op(f"{scope}/slice", "Slice", cost, dtype, [read], [result])[0]
    walker.recorder.set_rule("Slice", {"axes": [0], "starts": [step]}, [value], [(1, *shape)])
    return found


def _stack(walker: Walker, rows: Sequence[Value], result: Result, scope: str) -> Value:
    """The outputs of all steps as one tensor."""
    shape, dtype = result
    if all(row.kind == "literal" for row in rows):
        return Value(shape, dtype, "literal", None)
    if len(rows) == 1:
        return rows[0].viewed(result, "stack")
    if all(row.is_constant for row in rows):
        return walker.recorder.folded(f"{scope}/stack", None, [result])[0]
    reads = [(row.tensor, row.touched) for row in rows if row.tensor is not None]
    cost = OpCost("data_movement", 0.0, ())
    found = walker.recorder.op(f"{scope}/stack", "Concat", cost, dtype, reads, [result])[0]
    walker.recorder.set_rule("Concat", {"axis": 0}, rows, [shape])
    return found


def _while(
    walker: Walker, params: Mapping[str, Any], inputs: list[Value], results: list[Result], scope: str
) -> list[Value]:
    """Unroll a while loop: as often as its counter says, or the caller where no counter is known."""
    num_condition, num_body = params["cond_nconsts"], params["body_nconsts"]
    consts, carry = inputs[num_condition:][:num_body], inputs[num_condition + num_body :]
    length = _trip_count(params, [*inputs[:num_condition], *carry], walker.max_scan_length)
    loop, length = _loop_scope(walker, "while", length, scope)
    for step in range(length):
        carry = walker.run(params["body_jaxpr"], [*consts, *carry], f"{loop}/{step}")
    return carry


def _trip_count(params: Mapping[str, Any], inputs: Sequence[Value], limit: int) -> int | None:
    """Iterations of ``while counter < bound: counter += step``, at most ``limit + 1``; None if unknown."""
    condition, body = params["cond_jaxpr"].jaxpr, params["body_jaxpr"].jaxpr
    known = {variable: value.scalar for variable, value in zip(condition.invars, inputs, strict=True)}
    if [equation.primitive.name in _COMPARISONS for equation in condition.eqns] != [True]:
        return None
    compare = condition.eqns[0]
    counter_variable, bound_atom = compare.invars
    carried = condition.invars[params["cond_nconsts"] :]
    if counter_variable not in carried or compare.outvars != condition.outvars:
        return None
    position = carried.index(counter_variable)
    if bound_atom in carried and not _is_invariant(params, carried.index(bound_atom)):
        return None
    bound = bound_atom.val if hasattr(bound_atom, "val") else known[bound_atom]
    counter, step = known[counter_variable], _counter_step(params, body, position)
    if counter is None or bound is None or step is None:
        return None
    length, goes_on = 0, _COMPARISONS[compare.primitive.name]
    while length <= limit and goes_on(counter, bound):
        counter, length = counter + step, length + 1
    return length


def _is_invariant(params: Mapping[str, Any], position: int) -> bool:
    body = params["body_jaxpr"].jaxpr
    return body.outvars[position] is body.invars[params["body_nconsts"] + position]


def _counter_step(params: Mapping[str, Any], body: Any, position: int) -> Any:
    """The literal that the body adds to a carried counter; None if it does anything else."""
    before, after = body.invars[params["body_nconsts"] + position], body.outvars[position]
    for equation in body.eqns:
        if equation.outvars == [after] and equation.primitive.name in ("add", "sub"):
            first, second = equation.invars
            if first is before and hasattr(second, "val"):
                return second.val if equation.primitive.name == "add" else -second.val
    return None


def _cond(
    walker: Walker, params: Mapping[str, Any], inputs: list[Value], results: list[Result], scope: str
) -> list[Value]:
    """The taken branch if it is known, else one op: cost of the most expensive branch, reads of all."""
    predicate, operands = inputs[0], inputs[1:]
    branches = params["branches"]
    if predicate.scalar is not None:
        taken = min(max(int(predicate.scalar), 0), len(branches) - 1)
        return walker.run(branches[taken], operands, scope)
    name = joined(scope, "cond")
    arms, reads = [], [] if predicate.tensor is None else [(predicate.tensor, predicate.touched)]
    for branch in branches:
        ops, outputs = _branch(walker, branch, operands, name)
        arms.append(ops)
        reads += _outside_reads(ops, outputs)
    dearest = max(arms, key=_flops)
    op_class = min((op.op_class for op in dearest), key=OP_CLASSES.index, default="data_movement")
    heaviest = max(dearest, key=lambda op: op.flops, default=None)
    return walker.recorder.op(
        name,
        "If",
        OpCost(op_class, _flops(dearest), ()),
        heaviest.dtype if heaviest is not None else results[0][1],
        reads,
        results,
        unknown=tuple(row for ops in arms for op in ops for row in op.unknown),
    )


def _branch(
    walker: Walker, branch: Any, operands: Sequence[Value], scope: str
) -> tuple[list[RecordedOp], list[Value]]:
    """The live ops of a branch, removed from the recorder again, and its outputs."""
    start = len(walker.recorder.ops)
    outputs = walker.run(branch, operands, scope)
    ops = walker.recorder.ops[start:]
    del walker.recorder.ops[start:]
    return live_ops(ops, [value.tensor for value in outputs if value.tensor is not None]), outputs


def _outside_reads(ops: Sequence[RecordedOp], outputs: Sequence[Value]) -> list[Read]:
    inside = {tensor for op in ops for tensor, _, _ in op.writes}
    reads = [read for op in ops for read in op.reads]
    reads += [(value.tensor, value.touched) for value in outputs if value.tensor is not None]
    return [read for read in reads if read[0] not in inside]


def _flops(ops: Sequence[RecordedOp]) -> float:
    return sum(op.flops for op in ops)


def _loop_scope(walker: Walker, kind: str, length: int | None, scope: str) -> tuple[str, int]:
    """The scope of a loop, and its steps; the caller gives those that the program does not say."""
    loop = walker.recorder.unique(joined(scope, kind))
    if length is None:
        # The steps of the loops around it are no part of its name.
        parts = loop.split("/")
        outside = [part for i, part in enumerate(parts) if "/".join(parts[:i]) not in walker.loops]
        length = walker.trips.of("/".join(outside), kind)
    if length > walker.max_scan_length:
        # A while loop is counted only up to the limit, so it may be longer.
        at_least = "" if kind == "scan" else "at least "
        raise ModelError(
            f"op {joined(scope, kind)!r}: a loop of {at_least}{length} steps is longer than "
            f"max_scan_length={walker.max_scan_length}."
        )
    walker.loops.add(loop)
    return loop, length


CONTROL_FLOW: Final[Mapping[str, _Handler]] = {"cond": _cond, "scan": _scan, "while": _while}
