"""Modules of a torch program, from the names of its ops: ``layers.0.fc/linear`` is in ``layers.0.fc``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.errors import PlanError
from go_opt.model.graph import Graph
from go_opt.model.plan import number_by_first_place

_NUMBERED = re.compile(r"(.+?)\.(\d+)(?=\.|$)")


class Span(NamedTuple):
    """The ops of a module, ``start`` to ``end - 1``."""

    module: str
    start: int
    end: int


def module_of(op_name: str) -> str:
    """The path of the module that calls an op; empty for the model itself."""
    return op_name.rpartition("/")[0]


def spans(graph: Graph) -> list[Span]:
    """Modules whose ops are contiguous, outer ones first.

    Modules that are called again after others are left out, because they have several beginnings.
    """
    ops: dict[str, list[int]] = {}
    for op, name in enumerate(graph.op_names):
        path = module_of(name)
        while path:
            ops.setdefault(path, []).append(op)
            path = path.rpartition(".")[0]
    found = [
        Span(path, rows[0], rows[-1] + 1) for path, rows in ops.items() if len(rows) == rows[-1] - rows[0] + 1
    ]
    return sorted(found, key=lambda span: (span.module.count("."), span.start))


def layers(graph: Graph) -> list[Span]:
    """The longest numbered list of equal modules, in execution order.

    Raises:
      PlanError: the model has no such list.
    """
    by_list: dict[str, list[Span]] = {}
    for span in spans(graph):
        match = _NUMBERED.fullmatch(span.module)
        if match is not None:
            by_list.setdefault(match[1], []).append(span)
    longest = max(by_list.values(), key=lambda rows: (len(rows), -rows[0].start), default=[])
    if len(longest) < 2:
        raise PlanError(f"model {graph.name!r} has no list of layers, by which vLLM splits a model.")
    return sorted(longest, key=lambda span: span.start)


def cuts(graph: Graph, stage: IntArray, positions: Sequence[int], what: str) -> list[int]:
    """For each stage boundary, the nearest position between ops in the model's order.

    The nearest position has the fewest FLOPs on the wrong side.

    Args:
      stage: [N] number of the stage of each op, from 0.
      positions: the model may be cut before ops with these numbers.
      what: the unit by which the model is cut, for the message.

    Raises:
      PlanError: two boundaries have the same position, so that a stage would be empty.
    """
    weight = graph.op_flops + 1.0
    places = np.array(sorted(set(positions) - {0, graph.num_ops}), dtype=np.int64)
    found: list[int] = []
    for boundary in range(int(stage.max())):
        is_late = stage > boundary
        late_before = np.concatenate([[0.0], np.cumsum(np.where(is_late, weight, 0.0))])
        early_before = np.concatenate([[0.0], np.cumsum(np.where(is_late, 0.0, weight))])
        misplaced = late_before + early_before[-1] - early_before
        place = int(places[np.argmin(misplaced[places])]) if len(places) else 0
        if place in (0, *found):
            raise PlanError(
                f"stage {len(found) + 1} of the plan has no whole {what}: plan for fewer chips.", field="plan"
            )
        found.append(place)
    return found


def stage_numbers(placement: IntArray) -> tuple[IntArray, list[int]]:
    """[N] the stage of each op, and the first chip of each stage, in the order of the model."""
    return number_by_first_place(placement), list(dict.fromkeys(placement.tolist()))


def device_map(graph: Graph, placement: IntArray) -> dict[str, int]:
    """The fewest modules, and weights outside of them, that determine the chip of each op.

    If ops of a module are on several chips, its inner modules get their own chips. A module without
    inner modules gets the chip with most of its FLOPs.
    """
    ops: dict[str, list[int]] = {}
    for op, name in enumerate(graph.op_names):
        ops.setdefault(module_of(name), []).append(op)
    found = dict[str, int]()
    _assign("", ops, graph, placement, found)
    for tensor, name in enumerate(graph.tensor_names):
        readers = graph.reader_op[graph.reader_ptr[tensor] : graph.reader_ptr[tensor + 1]]
        if graph.tensor_kind[tensor] == 1 and "/" not in name and not _is_covered(name, found):
            found[name] = int(placement[readers[0]])
    return found


def _assign(
    module: str, ops: Mapping[str, list[int]], graph: Graph, placement: IntArray, found: dict[str, int]
) -> None:
    inside = [path for path in ops if path == module or path.startswith(f"{module}." if module else "")]
    chips = {int(placement[op]) for path in inside for op in ops[path]}
    depth = module.count(".") + 1 if module else 0
    children = dict.fromkeys(".".join(path.split(".")[: depth + 1]) for path in inside if path != module)
    if len(chips) == 1:
        found[module] = chips.pop()
    elif children:
        for child in children:
            _assign(child, ops, graph, placement, found)
    else:
        loads = np.zeros(int(placement.max()) + 1)
        np.add.at(loads, placement[ops[module]], graph.op_flops[ops[module]] + 1.0)
        found[module] = int(np.argmax(loads))


def _is_covered(weight: str, found: Mapping[str, int]) -> bool:
    parts = weight.split(".")
    return any(".".join(parts[:count]) in found for count in range(len(parts) + 1))
