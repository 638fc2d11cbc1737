"""Exports a plan of a torch program as split points for PyTorch tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from go_opt.api.inputs import whole_case
from go_opt.env import Target
from go_opt.env.copies.splits import planned_graph
from go_opt.env.evaluation import evaluate_plan
from go_opt.errors import ModelError, PlanError
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.run.export.folder import check_can_run, check_formats, check_free, files_of, whole_folder
from go_opt.run.manifest import MANIFEST, TORCH_FORMATS, TorchManifest, manifest_text
from go_opt.run.torch.forms import Form, torch_form
from go_opt.run.torch.modules import stage_numbers
from go_opt.search.rewriting.as_sent import plan_as_sent
from go_opt.solver.verify.verifier import verify


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
    with whole_folder(directory) as folder:
        for form in forms:
            (folder / form.file).write_text(form.text, "utf-8")
        manifest = replace(manifest, written=files_of(folder))
        (folder / MANIFEST).write_text(manifest_text(manifest), "utf-8")
    return manifest


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
