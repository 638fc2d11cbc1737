"""The verifier's check of the positions of relays and clones, in plain NumPy.

The shared definition says which ops may be cloned. The placement rules are checked elsewhere,
on the graph with relays and clones as ops.
"""

from __future__ import annotations

from collections.abc import Iterator

from go_opt.env.copies.clonable import clonable_ops
from go_opt.env.target import Target
from go_opt.model.graph import NO_PRODUCER, Graph
from go_opt.model.plan import Clone, Plan
from go_opt.solver.verify.stages import Broken


def shape_of_copies(graph: Graph, target: Target, plan: Plan) -> Iterator[Broken]:
    """Yields relays and clones of unknown tensors or ops, or on unknown chips."""
    last = target.num_chips - 1
    for relay in plan.relays:
        tensor = graph.tensor_index.get(relay.tensor)
        outside = [chip for chip in relay.chips if not 0 <= chip <= last]
        if tensor is None:
            yield "shape", f"a relay is of tensor {relay.tensor[:80]!r}, which the graph does not have."
        elif graph.tensor_producer[tensor] == NO_PRODUCER:
            yield "shape", f"a relay is of tensor {relay.tensor!r}, which no op produces."
        elif outside:
            message = f"tensor {relay.tensor!r} has a relay on chip {outside[0]}; chips are 0 to {last}."
            yield "shape", message
    for clone in plan.clones:
        if clone.op not in graph.op_index:
            yield "shape", f"a clone is of op {clone.op[:80]!r}, which the graph does not have."
        elif not 0 <= clone.chip <= last:
            message = f"op {clone.op!r} has a clone on chip {clone.chip}; chips are 0 to {last}."
            yield "shape", message


def broken_by_copies(graph: Graph, target: Target, plan: Plan) -> Iterator[Broken]:
    """Yields the first relay and the first clone in a forbidden position."""
    yield from _relays(graph, target, plan)
    yield from _clones(graph, plan)


def _relays(graph: Graph, target: Target, plan: Plan) -> Iterator[Broken]:
    if plan.relays and target.constraints.triangle == "off":
        name = plan.relays[0].tensor
        yield "relays", f"tensor {name!r} has a relay, but the target has no triangle rule."
        return
    seen: set[tuple[str, int]] = set()
    cloned = _chips_of_clones(graph, plan)
    for relay in plan.relays:
        tensor = graph.tensor_index[relay.tensor]
        producer = int(graph.tensor_producer[tensor])
        home = int(plan.placement[producer])
        # Readers on a chip with a clone of the producer read the clone's result.
        reading = _reader_chips(graph, plan, tensor, cloned) - cloned.get(producer, set())
        last = max(reading, default=home)
        for chip in relay.chips:
            if (relay.tensor, chip) in seen:
                yield "relays", f"tensor {relay.tensor!r} has two relays on chip {chip}."
                return
            seen.add((relay.tensor, chip))
            if not home < chip < last:
                message = (
                    f"the relay of tensor {relay.tensor!r} on chip {chip} is not between chip {home}, "
                    f"which makes it, and chip {last}, the last that reads it."
                )
                yield "relays", message
                return


def _clones(graph: Graph, plan: Plan) -> Iterator[Broken]:
    seen: set[Clone] = set()
    cloned = _chips_of_clones(graph, plan)
    for clone in plan.clones:
        op = graph.op_index[clone.op]
        if clone in seen:
            yield "clones", f"op {clone.op!r} has two clones on chip {clone.chip}."
        elif not clonable_ops(graph)[op]:
            message = "it is computed from more than inputs and small weights by cheap ops."
            yield "clones", f"op {clone.op!r} may not be cloned: {message}"
        elif clone.chip == plan.placement[op]:
            yield "clones", f"op {clone.op!r} has a clone on its own chip {clone.chip}."
        elif not any(
            clone.chip in _reader_chips(graph, plan, tensor, cloned) for tensor in graph.outputs_of(op)
        ):
            yield "clones", f"nothing on chip {clone.chip} reads the clone of op {clone.op!r}."
        else:
            seen.add(clone)
            continue
        return


def _chips_of_clones(graph: Graph, plan: Plan) -> dict[int, set[int]]:
    chips: dict[int, set[int]] = {}
    for clone in plan.clones:
        chips.setdefault(graph.op_index[clone.op], set()).add(clone.chip)
    return chips


def _reader_chips(graph: Graph, plan: Plan, tensor: int, cloned: dict[int, set[int]]) -> set[int]:
    """Returns the chips of the tensor's readers and of their clones."""
    readers = graph.readers_of(tensor)
    chips = set(plan.placement[readers].tolist())
    return chips.union(*(cloned[op] for op in readers if op in cloned))
