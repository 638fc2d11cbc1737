"""A plan in the formats of ``torch.distributed.pipelining``, accelerate and vLLM, with its cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.common.units import format_duration
from go_opt.env.evaluation import evaluate_plan
from go_opt.env.target import Target
from go_opt.errors import PlanError
from go_opt.model.codecs.start_files import by_prefix
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.model.start import OpStart, Start
from go_opt.run.torch.modules import cuts, device_map, layers, spans, stage_numbers
from go_opt.search.methods.given import plan_as_it_stands

_SHOWN: Final = 3  # names per note


@dataclass(frozen=True)
class Form:
    """A plan in the form of a tool."""

    format: str
    file: str
    text: str
    moved: tuple[str, ...]  # ops that are on another chip than in the plan
    interval_s: float  # predicted

    def note(self, planned_s: float) -> str:
        """One sentence about the differences from the plan; empty if there are none."""
        if not self.moved:
            return ""
        shown = ", ".join(map(repr, self.moved[:_SHOWN])) + (", …" if len(self.moved) > _SHOWN else "")
        count = "1 op is" if len(self.moved) == 1 else f"{len(self.moved)} ops are"
        return (
            f"{self.format}: {count} on another chip than planned, as modules are not split ({shown}); "
            f"predicted interval {format_duration(self.interval_s)}, planned {format_duration(planned_s)}."
        )


def torch_form(name: str, graph: Graph, target: Target, plan: Plan) -> Form:
    """The form ``name``, one of :data:`go_opt.run.manifest.TORCH_FORMATS`.

    Raises:
      PlanError: the plan cannot be expressed in this form; the message gives the reason.
    """
    file, make = _FORMS[name]
    text, chip = make(graph, plan.placement)
    moved = np.flatnonzero(chip != plan.placement)
    stands = plan
    if len(moved):
        size = np.zeros(target.num_chips, dtype=np.int32)
        size[plan.placement] = plan.replication
        ops = {name: OpStart(first) for name, first in zip(graph.op_names, chip.tolist(), strict=True)}
        stands = replace(plan_as_it_stands(graph, target, Start(ops)), replication=size[chip])
    interval_s = evaluate_plan(graph, target, stands).interval_s
    return Form(name, file, text, tuple(graph.op_names[op] for op in moved), interval_s)


def _split_spec(graph: Graph, placement: IntArray) -> tuple[str, IntArray]:
    stage, chips = stage_numbers(placement)
    points: dict[int, list[tuple[str, str]]] = {}
    for span in spans(graph):
        points.setdefault(span.start, []).append((span.module, "BEGINNING"))
    for span in spans(graph):
        points.setdefault(span.end, []).append((span.module, "END"))
    found = cuts(graph, stage, list(points), "module")
    spec: dict[str, str] = {}
    for place in found:
        free = [row for row in points[place] if row[0] not in spec]
        if not free:
            raise PlanError(
                f"module {points[place][0][0]!r} is a stage of its own and no module begins behind it: "
                "a split spec has one point for each module.",
                field="plan",
            )
        spec[free[0][0]] = free[0][1]
    return _json(spec), _chips(graph, found, chips)


def _device_map(graph: Graph, placement: IntArray) -> tuple[str, IntArray]:
    found = device_map(graph, placement)
    return _json(found), Start(by_prefix(found, graph)).on(graph).chip


def _vllm(graph: Graph, placement: IntArray) -> tuple[str, IntArray]:
    stage, chips = stage_numbers(placement)
    starts = [layer.start for layer in layers(graph)]
    found = cuts(graph, stage, starts[1:], "layer")
    counts = np.diff([0, *(starts.index(place) for place in found), len(starts)])
    return f"VLLM_PP_LAYER_PARTITION={','.join(map(str, counts))}\n", _chips(graph, found, chips)


def _chips(graph: Graph, found: list[int], chips: list[int]) -> IntArray:
    """[N] the chip of each op if the stages are cut at these positions."""
    stage = np.searchsorted(found, np.arange(graph.num_ops), side="right")
    return np.array(chips, dtype=np.int32)[stage]


def _json(rows: Mapping[str, object]) -> str:
    return json.dumps(rows, ensure_ascii=False, indent=1) + "\n"


_FORMS: Final[Mapping[str, tuple[str, Callable[[Graph, IntArray], tuple[str, IntArray]]]]] = {
    "split-spec": ("split_spec.json", _split_spec),
    "device-map": ("device_map.json", _device_map),
    "vllm": ("vllm.env", _vllm),
}
