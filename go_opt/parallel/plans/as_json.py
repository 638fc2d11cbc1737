"""Steps as JSON objects."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from go_opt.parallel.schedule import simulate
from go_opt.parallel.search import StepPlan
from go_opt.parallel.step import Step


def result_to_dict(found: Step | StepPlan, model: str) -> dict[str, Any]:
    """The JSON object of a costed step, or of the answer of a search."""
    return _plan_to_dict(found, model) if isinstance(found, StepPlan) else _step_to_dict(found, model)


def _step_to_dict(step: Step, model: str) -> dict[str, Any]:
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
        "memory_limit_bytes": step.case.memory_bytes,
    }


def _plan_to_dict(plan: StepPlan, model: str) -> dict[str, Any]:
    """What ``optimize --objective step --json`` prints: the first choice, the bound, and all choices."""
    choices = [
        {
            "parallel": asdict(step.chosen),
            "layers": [list(layers) for layers in step.layers],
            "step_s": step.step_s,
            "simulated_s": simulate(step).step_s,
        }
        for step in plan.choices
    ]
    return _step_to_dict(plan.best, model) | {
        "simulated_s": choices[0]["simulated_s"],
        "status": plan.status,
        "lower_bound_s": plan.lower_bound_s,
        "gap": plan.gap,
        "choices": choices,
        "configurations": plan.configurations,
        "solved": plan.solved,
        "is_complete": plan.is_complete,
        "wall_s": plan.wall_s,
    }
