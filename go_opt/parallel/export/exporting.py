"""Exports a plan of a training step for JAX, PyTorch and Megatron-LM."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from go_opt.common.version import VERSION
from go_opt.env import Target
from go_opt.errors import PlanError
from go_opt.parallel.export.jax_file import JAX_FILE, jax_text
from go_opt.parallel.export.megatron_file import MEGATRON_FILE, megatron_notes, megatron_text
from go_opt.parallel.export.shardings import Shardings
from go_opt.parallel.export.torch_file import TORCH_FILE, torch_notes, torch_text
from go_opt.parallel.plans import StepAnswer, loaded_step
from go_opt.parallel.transformer import pairs_text
from go_opt.run.export.folder import check_formats, check_free, files_of, whole_folder
from go_opt.run.manifest import MANIFEST, STEP_FORMATS, StepManifest, manifest_text


class _Form(NamedTuple):
    file: str
    text: Callable[[Shardings, str], str]  # of the model's text
    notes: Callable[[Shardings], list[str]]  # what of the plan the file does not say


def export_step(
    model: str,
    plan: str | Path,
    directory: str | Path,
    *,
    formats: Sequence[str] = STEP_FORMATS,
    target: Target | None = None,
    force: bool = False,
) -> StepManifest:
    """Write a plan of a training step for libraries that train (docs/export.md).

    Args:
      model: as ``gpt:hidden=768,layers=12,heads=12,sequence=1024``.
      plan: a file of ``optimize --objective step --out``.
      directory: a folder that does not exist or is empty.
      formats: ``jax``, a module with meshes and shardings; ``torch``, one with a ``DeviceMesh``, the layers
        of stages and what is parallelised how; ``megatron``, the arguments of Megatron-LM.
      target: None: the plan's own.
      force: delete the files that the manifest of an earlier export lists; other files stay.

    Raises:
      InvalidInputError: an argument is wrong.
      PlanError: the plan is malformed, of another model or target, or breaks a rule.
    """
    check_formats(formats, STEP_FORMATS)
    check_free(directory, force=force, inputs=(plan, target))
    answer = loaded_step(Path(plan), target, model)
    shardings = checked_shardings(answer)
    step, chosen = answer.step, dict.fromkeys(formats)
    manifest = StepManifest(
        answer.model,
        step.case.machine.target.name,
        step.case.machine.target.fingerprint,
        VERSION,
        step.case.batch,
        pairs_text(vars(step.chosen)),
        step.layers,
        step.step_s,
        {name: _FORMS[name].file for name in chosen},
        tuple(f"{name}: {note}" for name in chosen for note in _FORMS[name].notes(shardings)),
        (),
    )
    with whole_folder(directory) as folder:
        for name in chosen:
            form = _FORMS[name]
            (folder / form.file).write_text(form.text(shardings, answer.model), "utf-8")
        manifest = replace(manifest, written=files_of(folder))
        (folder / MANIFEST).write_text(manifest_text(manifest), "utf-8")
    return manifest


def checked_shardings(answer: StepAnswer) -> Shardings:
    """The shardings of a plan that breaks no rule."""
    broken = next(iter(answer.verify()), None)
    if broken is not None:
        raise PlanError(f"the plan cannot run: {broken.message}", field="plan")
    return Shardings(answer.step)


_FORMS: Final[Mapping[str, _Form]] = {
    "jax": _Form(JAX_FILE, jax_text, lambda shardings: shardings.notes),
    "torch": _Form(TORCH_FILE, torch_text, torch_notes),
    "megatron": _Form(MEGATRON_FILE, megatron_text, megatron_notes),
}
