"""Training steps as commands ask about them: searched, costed, or plans of files; their text and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from go_opt.common.files import read_json, write_atomically
from go_opt.common.outputs import PLAN, TRACE
from go_opt.common.units import format_bytes, format_duration, format_ratio
from go_opt.env import Target, load_target
from go_opt.errors import InvalidInputError, PlanError
from go_opt.parallel.configuration import Configuration, pairs_text, parse_configuration
from go_opt.parallel.plans.checks import check_division, check_step
from go_opt.parallel.plans.explaining import TERMS, Drawing, drawing_of, gains, kinds_text
from go_opt.parallel.schedule import MOST_PASSES, simulate
from go_opt.parallel.search import StepPlan, plan_step
from go_opt.parallel.step import Case, Layers, Step, cost_step
from go_opt.solver import Violation

_MOST_TRACED: Final = MOST_PASSES // 100  # passes of a trace, a hundred bytes each
_FIELDS: Final = ("model", "target", "target_fingerprint", "batch", "parallel", "layers")


@dataclass(frozen=True)
class StepAnswer:
    """A step, or the answer of a search, and the text of its model."""

    found: Step | StepPlan
    model: str

    @property
    def step(self) -> Step:
        return self.found.best if isinstance(self.found, StepPlan) else self.found

    @property
    def parallel(self) -> str:
        """The configuration, as ``--parallel`` takes it."""
        return _parallel_text(self.step.chosen)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of ``--json``: a step; of a search also the bound, and all choices."""
        plan, step = self.found, self.step
        of_step = {
            "objective": "step",
            "model": self.model,
            "target": step.case.machine.target.name,
            "devices": step.case.machine.devices,
            "batch": step.case.batch,
            **_choice(step),
            "micro_batches": step.chosen.micro_batches(step.case.batch),
            "terms_s": step.terms_s,
            "tokens_per_s": step.case.batch * step.case.model.sequence / step.step_s,
            "fits": not step.lacks,
            "lacks": step.lacks,
            "memory_bytes": list(step.memory_bytes),
            "memory_limit_bytes": step.case.memory_bytes,
        }
        if isinstance(plan, Step):
            return of_step
        choices = [_choice(one) | {"simulated_s": simulate(one).step_s} for one in plan.choices]
        return of_step | {
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

    def lines(self) -> Iterator[str]:
        """As text: a step; of a search also the layers, the bound and the other choices."""
        plan, best = self.found, self.step
        if isinstance(plan, Step):
            yield from _step_lines(plan)
            return
        yield f"plan        {self.parallel}"
        yield f"layers      {_layers_text(best)}"
        yield from _step_lines(best)
        yield f"simulated   {format_duration(simulate(best).step_s)}"
        below = f"no schedule in any of {plan.configurations} configurations is below"
        yield f"bound       {format_duration(plan.lower_bound_s)}: {below}"
        how = "" if plan.is_complete else ", stopped early"
        yield f"status      {plan.status}, gap {format_ratio(plan.gap)}, in {plan.wall_s:.2f} s{how}"
        for step in plan.choices[1:]:
            yield f"next        {format_duration(step.step_s)}  {_parallel_text(step.chosen)}"

    def explanation(self) -> dict[str, Any]:
        """Where the step's time goes, and the steps that single changes would make."""
        return self.to_dict() | {"gains": [gain._asdict() for gain in gains(self.step)]}

    def explanation_lines(self) -> Iterator[str]:
        """The step, and what would make it faster."""
        step = self.step
        yield from _step_lines(step)
        for gain in gains(step):
            saved_s = step.step_s - gain.step_s
            yield f"gain        {format_duration(saved_s)} ({saved_s / step.step_s:.0%}) with {gain.what}"

    def drawing(self, most_ranks: int, most_passes: int) -> Drawing:
        """What a page shows."""
        return drawing_of(self.step, most_ranks, most_passes)

    def verify(self) -> list[Violation]:
        return check_step(self.step)

    @property
    def valid_text(self) -> str:
        """What ``verify`` says of a valid plan."""
        return f"valid: a step of {self.step.step_s:.4g} s."

    def save(self, path: Path) -> None:
        """Write the plan."""
        target = self.step.case.machine.target
        data = self.to_dict() | {
            "format": PLAN.json_format,
            "target": target.source,
            "target_fingerprint": target.fingerprint,
        }
        write_atomically(path, json.dumps(data, ensure_ascii=False) + "\n")

    def save_trace(self, path: Path) -> int:
        """Write the simulated schedule for ui.perfetto.dev, a track for each rank; returns its passes."""
        timeline = simulate(self.step)
        order = timeline.order
        if order.chunk.size > _MOST_TRACED:
            raise InvalidInputError(
                f"a trace of {order.chunk.size} passes, the limit is {_MOST_TRACED}.", field="batch"
            )
        events: list[dict[str, Any]] = []
        for rank in range(len(order.chunk)):
            track = {"pid": 1, "tid": rank + 2}
            events.append({"ph": "M", **track, "name": "thread_name", "args": {"name": f"rank {rank}"}})
            for i, chunk in enumerate(order.chunk[rank].tolist()):
                kind = "backward" if order.is_backward[rank, i] else "forward"
                start_s, end_s = float(timeline.start_s[rank, i]), float(timeline.end_s[rank, i])
                events.append(
                    {
                        "ph": "X",
                        **track,
                        "name": f"{kind} {order.micro_batch[rank, i]}",
                        "cat": kind,
                        "ts": start_s * 1e6,
                        "dur": (end_s - start_s) * 1e6,
                        "args": {"stage": chunk * len(order.chunk) + rank},
                    }
                )
        write_atomically(path, json.dumps({"format": TRACE.json_format, "traceEvents": events}) + "\n")
        return int(order.chunk.size)


def _choice(step: Step) -> dict[str, Any]:
    return {
        "parallel": asdict(step.chosen),
        "layers": [list(layers) for layers in step.layers],
        "step_s": step.step_s,
    }


def _step_lines(step: Step) -> Iterator[str]:
    """The step's time, its parts, and the memory of the fullest rank."""
    tokens_per_s = step.case.batch * step.case.model.sequence / step.step_s
    number = step.chosen.micro_batches(step.case.batch)
    passed = "1 micro-batch" if number == 1 else f"{number} micro-batches"
    yield f"step        {format_duration(step.step_s)} ({tokens_per_s:.4g} tokens/s), {passed}"
    for name, seconds in step.terms_s.items():
        if seconds > 0:
            share = seconds / step.step_s
            yield f"  {format_duration(seconds):>10}  {share:4.0%}  {TERMS[name]}"
    most = max(step.memory_bytes)
    rank = step.memory_bytes.index(most)
    limit = format_bytes(step.case.memory_bytes)
    yield f"memory      {format_bytes(most)} of {limit}, rank {rank} of {len(step.memory_bytes)}"
    if step.lacks:
        yield f"lacks       {' '.join(step.lacks[:4])}{' …' if len(step.lacks) > 4 else ''}"


def _parallel_text(chosen: Configuration) -> str:
    """The text of a configuration without what is at its default."""
    default = Configuration()
    return pairs_text(
        {name: value for name, value in vars(chosen).items() if value != getattr(default, name)}
    )


def _layers_text(step: Step) -> str:
    """Layers of ranks, runs of equal ranks together: ``6 x 12 (none), 2 x 12 (9 none, 3 full)``."""
    runs = ((layers, len(list(run))) for layers, run in groupby(step.layers))
    texts = [f"{number} x {sum(layers)} ({kinds_text(layers)})" for layers, number in runs]
    return ", ".join(texts) + " recomputed"


def costed_step(model: str, target: Target, batch: int, parallel: str) -> StepAnswer:
    """A step in a given configuration."""
    return StepAnswer(cost_step(Case.read(model, target, batch), parallel), model)


def searched_step(
    model: str, target: Target, batch: int, budget_s: float, should_stop: Callable[[], bool]
) -> StepAnswer:
    """The best step."""
    return StepAnswer(plan_step(Case.read(model, target, batch), budget_s, should_stop), model)


def loaded_step(
    path: Path, target: Target | None, model: str | None = None, *, refuses: bool = True
) -> StepAnswer:
    """The plan of a file, for ``model`` in place of its own.

    Args:
      target: in place of the one that the file names; it must have the same figures.

    Raises:
      PlanError: the file is missing or malformed, of another target, or with ``refuses`` the model cannot be
        divided so.
    """
    what = f"plan file {str(path)!r}"
    data = read_json(path, "plan file", PlanError)
    if not _is_of_step(data):
        raise PlanError(f"{what} is none of a training step.", field="objective")
    try:
        step, own = _step_of(data, target)
    except InvalidInputError as error:
        raise PlanError(f"{what}: {error}", field=error.field) from None
    if model is not None and model != own:
        step = Step(Case.read(model, step.case.machine.target, step.case.batch), step.chosen, step.layers)
    for violation in check_division(step) if refuses else ():
        raise PlanError(f"{what}: {violation.message}", field=violation.constraint)
    return StepAnswer(step, model or own)


def is_step_plan(path: Path) -> bool:
    """Whether a plan file is one of a training step; False if it cannot be read."""
    try:
        return _is_of_step(read_json(path, "plan file", PlanError))
    except PlanError:
        return False


def _is_of_step(data: Any) -> bool:
    return isinstance(data, dict) and data.get("objective") == "step"


def _step_of(data: dict[str, Any], on: Target | None) -> tuple[Step, str]:
    """The step of a plan's JSON object, and the text of its model."""
    for name in _FIELDS:
        if name not in data:
            raise PlanError(f"{name} is missing.", field=name)
    for name, kind, called in (
        ("model", str, "a text"),
        ("target", str, "a text"),
        ("batch", int, "a whole number"),
        ("parallel", dict, "an object"),
    ):
        if not isinstance(data[name], kind) or isinstance(data[name], bool):
            raise PlanError(f"{name} must be {called}.", field=name)
    target = load_target(data["target"]) if on is None else on
    if data["target_fingerprint"] != target.fingerprint:
        raise PlanError(f"it is of another target than {target.name!r}.", field="target")
    case = Case.read(data["model"], target, data["batch"])
    return Step(case, parse_configuration(pairs_text(data["parallel"])), _layers(data["layers"])), data[
        "model"
    ]


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
