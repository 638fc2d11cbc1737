"""The verifier's check of replicated stages (design section 8) and of relays, in plain NumPy.

The placement rules are checked elsewhere, on the graph with relays as ops.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

import numpy as np

from go_opt.env.target import Target
from go_opt.model.graph import NO_PRODUCER, Graph
from go_opt.model.plan import Plan

Broken = tuple[str, str]  # the rule's name, and one sentence


def stages_in(plan: Plan) -> list[tuple[int, int]]:
    """(first chip, chips) of every stage, ascending; ops of a chip that disagree make several."""
    pairs = zip(plan.placement.tolist(), plan.replication.tolist(), strict=True)
    return sorted(set(pairs))


def pairs_in_turn(source: int, makers: int, reader: int, readers: int) -> Iterator[tuple[int, int]]:
    """Yields all pairs of chips between which an inference passes from one stage to another."""
    if source == reader:
        return
    for turn in range(lcm(makers, readers)):
        yield source + turn % makers, reader + turn % readers


def broken_stages(graph: Graph, target: Target, plan: Plan) -> Iterator[Broken]:
    """Yields the first invalid forwarding, the first invalid stage, or else the first misplaced relay."""
    stages = stages_in(plan)
    yield from _broken_forwarding(graph, target, plan, dict(stages))
    if all(size == 1 for _, size in stages):
        return
    shared = {
        op: state for state in graph.states if state.scope == "model" for op in graph.readers_of(state.read)
    }
    before, behind = -1, 0  # the stage before, and the chip behind it
    for first, size in stages:
        ops = np.flatnonzero((plan.placement == first) & (plan.replication == size)).tolist()
        name, touching = graph.op_names[ops[0]], [op for op in ops if op in shared]
        chips = f"chips {first} to {first + size - 1}"
        if size < 1:
            yield "replication", f"op {name!r} is replicated over {size} chips."
        elif first + size > target.num_chips:
            last = target.num_chips - 1
            yield "replication", f"op {name!r} is replicated over {chips}; the last chip is {last}."
        elif first < behind:
            yield "replication", f"op {name!r} is replicated over {chips}, the stage of chip {before} too."
        elif graph.states and size > graph.sequences:
            few = f"{graph.sequences} sequences are" if graph.sequences > 1 else "one inference is"
            yield "replication", f"op {name!r} is replicated over {chips}, but only {few} in flight."
        elif touching and size > 1:
            name, state = graph.op_names[touching[0]], graph.tensor_names[shared[touching[0]].read]
            yield (
                "replication",
                f"op {name!r} is replicated over {chips}, which all need the state {state!r}.",
            )
        elif len(set(target.chip_kind[first : first + size].tolist())) > 1:
            yield "replication", f"op {name!r} is replicated over {chips}, which are of several kinds."
        else:
            before, behind = first, first + size
            continue
        return
    starts = {first for first, _ in stages}
    for chip in (chip for relay in plan.relays for chip in relay.chips):
        if chip not in starts:
            yield "replication", f"a relay is on chip {chip}, where no stage starts."
            return


def _broken_forwarding(graph: Graph, target: Target, plan: Plan, size_of: dict[int, int]) -> Iterator[Broken]:
    """The first stage whose chips cannot forward weights to each other."""
    for i, chip in enumerate(plan.forwards):
        if chip in plan.forwards[:i]:
            yield "forwarding", f"weights are forwarded from chip {chip} twice."
        elif size_of.get(chip, 1) == 1:
            yield "forwarding", f"weights are forwarded from chip {chip}, where no replicated stage starts."
        elif not (target.goes_forward and target.overlap):
            yield (
                "forwarding",
                (
                    f"weights are forwarded from chip {chip}; that takes a one-directional ring or chain "
                    "whose transfers overlap compute."
                ),
            )
        elif any(state.scope == "sequence" for state in graph.states) and graph.sequences % size_of[chip] > 0:
            yield (
                "forwarding",
                f"weights are forwarded from chip {chip} over {size_of[chip]} chips, of which some have more "
                f"of the {graph.sequences} sequences than others.",
            )
        else:
            continue
        return


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
