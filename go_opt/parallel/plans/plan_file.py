"""Plans of training steps as files, and their schedules as traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from go_opt.common.files import read_json, write_atomically
from go_opt.common.outputs import PLAN, TRACE
from go_opt.env import Target, load_target
from go_opt.errors import InvalidInputError, PlanError
from go_opt.parallel.case import Case
from go_opt.parallel.configuration import parse_configuration
from go_opt.parallel.pairs import pairs_text
from go_opt.parallel.schedule import MOST_PASSES, simulate
from go_opt.parallel.step import Layers, Step

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
    """Write the plan; ``facts`` is its JSON object (:func:`go_opt.parallel.plans.as_json.result_to_dict`)."""
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
