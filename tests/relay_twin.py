"""The slow twin of relays: what each op and relay reads, and in which order they run, by definition."""

from __future__ import annotations

from itertools import groupby

from go_opt.env.copies.relays import relay_name
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan


def _chips(plan: Plan) -> dict[str, list[int]]:
    """The chips of the relays of each tensor, ascending."""
    found: dict[str, set[int]] = {}
    for relay in plan.relays:
        found.setdefault(relay.tensor, set()).update(relay.chips)
    return {tensor: sorted(chips) for tensor, chips in found.items()}


def reads_with_relays(graph: Graph, plan: Plan) -> set[tuple[str, str, int]]:
    """Tensor, op and elements of each read: from the last relay before the op's chip, or the original."""
    chips = _chips(plan)

    def source(tensor: str, chip: int) -> str:
        before = [one for one in chips.get(tensor, ()) if one < chip]
        return relay_name(tensor, before[-1]) if before else tensor

    found = {
        (source(graph.tensor_names[k], int(plan.placement[op])), name, elements)
        for op, name in enumerate(graph.op_names)
        for k, elements in graph.reads_of(op)
    }
    for tensor, on in chips.items():
        elements = int(graph.tensor_elements[graph.tensor_index[tensor]])
        found |= {(source(tensor, chip), relay_name(tensor, chip), elements) for chip in on}
    return found


def order_with_relays(graph: Graph, plan: Plan) -> list[str]:
    """Ops and relays as they run: relays follow the kernel that makes their tensor."""
    chips, names = _chips(plan), list[str]()
    for _, kernel in groupby(plan.order.tolist(), key=lambda op: int(plan.fusion_group[op])):
        ops = list(kernel)
        names += [graph.op_names[op] for op in ops]
        made = (graph.tensor_names[k] for op in ops for k in graph.outputs_of(op))
        names += [relay_name(tensor, chip) for tensor in made for chip in chips.get(tensor, ())]
    return names
