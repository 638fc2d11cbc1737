"""Writes a model alone, rewritten, and checks it: ONNX Runtime runs both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from go_opt.api.inputs import as_target
from go_opt.env.rewrites import names
from go_opt.env.rewrites.applying import possible_rewrites, with_rewrites
from go_opt.errors import ModelError
from go_opt.extras import check_installed
from go_opt.model.bindings import NO_BINDINGS, Bindings
from go_opt.model.plan import Plan
from go_opt.run.cut.stages import plan_models, write_model
from go_opt.run.export.exporting import whole_model
from go_opt.run.export.folder import check_free, whole_folder
from go_opt.run.pipeline.check import random_inputs
from go_opt.run.pipeline.running import expected_outputs

RULES: Final = (names.FOLD, names.BATCH)  # products that read one tensor are seldom faster as one on a CPU
SIMPLIFIED: Final = "model.onnx"
_TARGET: Final = "h100-sxm-1"  # of the plan that has all ops in one stage


@dataclass(frozen=True)
class Simplified:
    """A model that was rewritten."""

    rewrites: Mapping[str, int]  # by rule
    difference: float  # of an output at most, relative to its largest element
    noise: float  # the same of ONNX Runtime's own levels


def simplify(
    model: str | Path, directory: str | Path, bindings: Bindings = NO_BINDINGS, *, seed: int = 0
) -> Simplified:
    """Write the model, with all that ``fold`` and ``batch`` can rewrite, as ``model.onnx`` in a folder.

    Args:
      directory: a folder that does not exist or is empty.
      seed: draws the inputs on which both models must agree.

    Raises:
      InvalidInputError: the folder is not free, or ONNX Runtime is not installed.
      ModelError: a part of the model cannot be rewritten or read; or outputs differ by more than rounding.
    """
    check_installed("--simplify", "onnxruntime")
    with whole_model(model) as whole:
        check_free(directory, force=False, inputs=whole.files)
        if len(whole.files) > 1:
            raise ModelError("--simplify takes one model.", field="model")
        graph, lowered = whole.read(bindings, "native")
    lowered.file.check_weights()
    made, on = with_rewrites(graph, possible_rewrites(graph, RULES)), as_target(_TARGET)
    ops = np.arange(made.num_ops)
    plan = Plan.create(
        made, on.name, on.fingerprint, placement=0 * ops, order=ops, fusion_group=ops, provenance="simplify"
    )
    cut, _, manifest = plan_models(lowered, graph, on, plan, lambda stage: SIMPLIFIED)
    inputs = [random_inputs(Path(model), manifest, np.random.default_rng(seed))]
    with whole_folder(directory) as folder:
        write_model(cut, written := folder / SIMPLIFIED)
        sent, found = (expected_outputs(one, manifest, inputs, 1) for one in (Path(model), written))
        apart = {name: sent.difference(0, name, one) for name, one in found.optimised[0].items()}
        worst = max(apart, key=lambda name: apart[name] / sent.tolerance(name, None))
        if not apart[worst] <= sent.tolerance(worst, None):
            raise ModelError(
                f"output {worst!r} of the simplified model differs by {apart[worst]:.1e} of its largest"
                " element: nothing was written."
            )
    return Simplified(Counter(one.rule for one in made.rewrites), apart[worst], max(sent.noise.values()))
