"""Plans of training steps as files, and their schedules as traces."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from go_opt.common.files import read_json, write_atomically
from go_opt.common.outputs import PLAN, TRACE
from go_opt.env import Target, load_target
from go_opt.errors import InvalidInputError, PlanError
from go_opt.parallel.case import Case
from go_opt.parallel.configuration import parse_configuration
from go_opt.parallel.schedule import MOST_PASSES, simulate
from go_opt.parallel.search import StepPlan
from go_opt.parallel.step import Layers, Step
from go_opt.parallel.transformer import pairs_text

_MOST_TRACED: Final = MOST_PASSES // 100  # passes of a trace, a hundred bytes each
_FIELDS: Final = ("model", "target", "target_fingerprint", "batch", "parallel", "layers")


def is_step_plan(path: Path) -> bool:
    """Whether a plan file is one of a training step; False if it cannot be read."""
    try:
        data = read_json(path, "plan file", PlanError)
    except PlanError:
        return False
    return isinstance(data, dict) and data.get("objective") == "step"


def save_step(step: Step, path: Path, facts: dict[str, Any]) -> None:
    """Write the plan; ``facts`` is its JSON object (:func:`result_to_dict`)."""
    target = step.case.machine.target
    data = facts | {
        "format": PLAN.json_format,
        "target": target.source,
        "target_fingerprint": target.fingerprint,
    }
    write_atomically(path, json.dumps(data, ensure_ascii=False) + "\n")


def load_step(path: Path, on: Target | None = None) -> tuple[Step, str]:
    """The plan of a file and the text of its model.

    Args:
      on: the target, in place of the one that the file names; it must have the same figures.

    Raises:
      PlanError: the file is missing or malformed, or is of another target.
    """
    what = f"plan file {str(path)!r}"
    data = read_json(path, "plan file", PlanError)
    if not isinstance(data, dict) or data.get("objective") != "step":
        raise PlanError(f"{what} is none of a training step.", field="objective")
    for name in _FIELDS:
        if name not in data:
            raise PlanError(f"{what}: {name} is missing.", field=name)
    try:
        model, batch, chosen = _text(data, "model"), data["batch"], data["parallel"]
        target = load_target(_text(data, "target")) if on is None else on
        if data["target_fingerprint"] != target.fingerprint:
            raise PlanError(f"it is of another target than {target.name!r}.", field="target")
        if not isinstance(batch, int) or isinstance(batch, bool):
            raise PlanError("batch must be a whole number.", field="batch")
        if not isinstance(chosen, dict):
            raise PlanError("parallel must be an object.", field="parallel")
        case = Case.read(model, target, batch)
        return Step(case, parse_configuration(pairs_text(chosen)), _layers(data["layers"])), model
    except InvalidInputError as error:
        raise PlanError(f"{what}: {error}", field=error.field) from None


def _text(data: dict[str, Any], name: str) -> str:
    text = data[name]
    if not isinstance(text, str):
        raise PlanError(f"{name} must be a text.", field=name)
    return text


def _layers(rows: Any) -> tuple[Layers, ...]:
    if not isinstance(rows, list) or not rows:
        raise PlanError("layers must be a list of ranks.", field="layers")
    found: list[Layers] = []
    for row in rows:
        is_right = isinstance(row, list) and len(row) == 3
        if not (is_right and all(type(n) is int and 0 <= n < 2**31 for n in row)):
            raise PlanError("layers must be three whole numbers for each rank.", field="layers")
        found.append((row[0], row[1], row[2]))
    return tuple(found)


def save_trace(step: Step, path: Path) -> int:
    """Write the simulated schedule for ui.perfetto.dev, a track for each rank; returns its passes."""
    timeline = simulate(step)
    order = timeline.order
    if order.chunk.size > _MOST_TRACED:
        raise InvalidInputError(
            f"a trace of {order.chunk.size} passes, the limit is {_MOST_TRACED}.", field="batch"
        )
    events: list[dict[str, Any]] = []
    for rank in range(len(order.chunk)):
        named = {"ph": "M", "pid": 1, "tid": rank + 2, "name": "thread_name"}
        events.append(named | {"args": {"name": f"rank {rank}"}})
        for i, chunk in enumerate(order.chunk[rank].tolist()):
            kind = "backward" if order.is_backward[rank, i] else "forward"
            start_s, end_s = float(timeline.start_s[rank, i]), float(timeline.end_s[rank, i])
            events.append(
                {
                    "ph": "X",
                    "pid": 1,
                    "tid": rank + 2,
                    "name": f"{kind} {order.micro_batch[rank, i]}",
                    "cat": kind,
                    "ts": start_s * 1e6,
                    "dur": (end_s - start_s) * 1e6,
                    "args": {"stage": chunk * len(order.chunk) + rank},
                }
            )
    write_atomically(path, json.dumps({"format": TRACE.json_format, "traceEvents": events}) + "\n")
    return int(order.chunk.size)


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
