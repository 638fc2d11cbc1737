"""Exports a plan of a torch program for ``torch.distributed.pipelining``, accelerate and vLLM.

Modules follow from the names of ops: ``layers.0.fc/linear`` is in ``layers.0.fc``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from go_opt.api.inputs import whole_case
from go_opt.common.arrays import IntArray
from go_opt.common.units import format_duration
from go_opt.env import Target
from go_opt.env.copies.splits import planned_graph
from go_opt.env.evaluation import evaluate_plan
from go_opt.errors import ModelError, PlanError
from go_opt.model.codecs.start_files import by_prefix
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan, number_by_first_place
from go_opt.model.start import OpStart, Start
from go_opt.run.export.folder import check_can_run, check_free, write_export
from go_opt.run.manifest import TORCH_FORMATS, TorchManifest, check_formats
from go_opt.search.methods.given import plan_as_it_stands
from go_opt.search.rewriting.choices import plan_as_sent
from go_opt.solver.verify.verifier import verify

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


def export_torch(
    model: Graph | str | Path,
    plan: Plan | str | Path,
    directory: str | Path,
    *,
    formats: Sequence[str] = ("split-spec", "device-map"),
    target: Target | str | Path | None = None,
    costs: str | Path | None = None,
    force: bool = False,
) -> TorchManifest:
    """Write files by which PyTorch tools split a model according to ``plan`` (docs/export.md).

    Args:
      model: the graph of :func:`go_opt.from_torch`, or the path of a ``.pt2`` file.
      plan: a plan, or the path of a plan file.
      directory: a folder that does not exist or is empty.
      formats: ``split-spec`` for ``torch.distributed.pipelining``, ``device-map`` for accelerate,
        ``vllm`` for ``VLLM_PP_LAYER_PARTITION``.
      target: None: the plan's own.
      costs: CSV file of the measured seconds that the plan was made with.
      force: delete the files that the manifest of an earlier export lists; other files stay.

    Raises:
      InvalidInputError: an argument is wrong.
      PlanError: the plan is not of this model and target, breaks a rule, or does not fit a format.
    """
    check_formats(formats, TORCH_FORMATS)
    check_free(directory, force=force, inputs=(model, plan, target, costs))
    if not isinstance(model, Graph) and not str(model).endswith(".pt2"):
        raise ModelError(f"{str(model)!r} is no torch program, a file that ends in .pt2.")
    graph, on, decided = whole_case(model, target, plan, costs)
    if decided.splits:
        op = decided.splits[0].op
        raise PlanError(f"op {op!r} is split, which no tool of PyTorch takes; plan with --no-splits.")
    made = planned_graph(graph, decided)
    check_can_run(verify(made, on, decided))
    if decided.rewrites:  # no tool of PyTorch knows them
        decided = plan_as_sent(graph, made, decided)
        check_can_run(verify(graph, on, decided))
    manifest, forms = _forms(graph, on, decided, formats)

    def write(folder: Path) -> None:
        for form in forms:
            (folder / form.file).write_text(form.text, "utf-8")

    return write_export(manifest, directory, write)


def _forms(
    graph: Graph, target: Target, plan: Plan, formats: Sequence[str]
) -> tuple[TorchManifest, list[Form]]:
    forms = [torch_form(name, graph, target, plan) for name in dict.fromkeys(formats)]
    planned_s = evaluate_plan(graph, target, plan).interval_s
    chips = stage_numbers(plan.placement)[1]
    manifest = TorchManifest(
        **TorchManifest.fields_of(graph, plan, planned_s),
        chips=tuple(chips),
        replication=tuple(int(plan.replication[np.argmax(plan.placement == chip)]) for chip in chips),
        files={form.format: form.file for form in forms},
        intervals_s={form.format: form.interval_s for form in forms},
        notes=tuple(note for form in forms if (note := form.note(planned_s))),
    )
    return manifest, forms


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
    return _json(found), Start(by_prefix(found, graph)).on(graph)[0]


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
