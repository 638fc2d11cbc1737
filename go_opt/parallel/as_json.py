"""Steps as JSON objects."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from go_opt.parallel.step import Step


def step_to_dict(step: Step, model: str) -> dict[str, Any]:
    """What ``evaluate --objective step --json`` prints."""
    return {
        "objective": "step",
        "model": model,
        "target": step.case.machine.target.name,
        "devices": step.case.machine.devices,
        "batch": step.case.batch,
        "parallel": asdict(step.chosen),
        "micro_batches": step.chosen.micro_batches(step.case.batch),
        "layers": [list(layers) for layers in step.layers],
        "step_s": step.step_s,
        "terms_s": step.terms_s,
        "tokens_per_s": step.case.batch * step.case.model.sequence / step.step_s,
        "fits": not step.lacks,
        "lacks": step.lacks,
        "memory_bytes": list(step.memory_bytes),
        "memory_limit_bytes": step.case.machine.memory_bytes,
    }
