"""The verifier's check of the positions of relays, in plain NumPy.

The placement rules are checked elsewhere, on the graph with relays as ops.
"""

from __future__ import annotations

from collections.abc import Iterator

from go_opt.env.target import Target
from go_opt.model.graph import NO_PRODUCER, Graph
from go_opt.model.plan import Plan
from go_opt.solver.verify.stages import Broken


def shape_of_relays(graph: Graph, target: Target, plan: Plan) -> Iterator[Broken]:
    """Yields relays of unknown tensors, or on unknown chips."""
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


def broken_relays(graph: Graph, target: Target, plan: Plan) -> Iterator[Broken]:
    """Yields the first relay in a forbidden position."""
    if plan.relays and target.constraints.triangle == "off":
        name = plan.relays[0].tensor
        yield "relays", f"tensor {name!r} has a relay, but the target has no triangle rule."
        return
    seen: set[tuple[str, int]] = set()
    for relay in plan.relays:
        tensor = graph.tensor_index[relay.tensor]
        home = int(plan.placement[graph.tensor_producer[tensor]])
        last = max(plan.placement[graph.readers_of(tensor)].tolist(), default=home)
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
