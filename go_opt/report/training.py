"""Training runs and jobs of a service as text and as JSON types: their progress, and their results."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table

from go_opt.common.units import format_duration
from go_opt.report.parts.wording import table_of
from go_opt.result_json import finite
from go_opt.service.client.operation import JobProgress, JobResult, Operation

if TYPE_CHECKING:
    from go_opt.agents.training.run import Progress
    from go_opt.service.client.operation import JobProgress
    from go_opt.training import TrainingResult

_QUIET_S: Final = 1.0


class TrainingProgress:
    """One line per second and for the last step: reward, speed and time left."""

    def __init__(self, *, of_one_graph: bool, is_quiet: bool = False) -> None:
        """``of_one_graph``: show the best interval. ``is_quiet``: print nothing."""
        self._of_one_graph = of_one_graph
        self._is_quiet = is_quiet
        self._has_started = False
        self._next_s = -math.inf

    def on_start(self) -> None:
        """Announce compilation before the first step; later calls do nothing."""
        if not self._has_started:
            self._has_started = True
            self._say("the first step may compile for a minute; then programs come from the cache ...")

    def on_progress(self, progress: Progress | JobProgress) -> None:
        """Report a step, at most once a second except for the last."""
        now_s = time.monotonic()
        if now_s >= self._next_s or progress.step == progress.steps:
            self._next_s = now_s + _QUIET_S
            self._say(progress_line(progress, of_one_graph=self._of_one_graph))

    def _say(self, line: str) -> None:
        if not self._is_quiet:
            print(line, file=sys.stderr, flush=True)


def progress_line(progress: Progress | JobProgress, *, of_one_graph: bool) -> str:
    """``step 3/7  96 samples  reward 0.412  best 100.4 us  85.1 samples/s  2 s left``."""
    parts = [
        f"step {progress.step}/{progress.steps}",
        f"{progress.samples} samples",
        f"reward {progress.reward:.3f}",
    ]
    if of_one_graph:
        parts.append(f"best {format_duration(progress.best_interval_s)}")
    elif progress.score is not None and progress.best_score is not None:
        parts.append(f"validation {progress.score:.3f} (best {progress.best_score:.3f})")
    parts += [f"{progress.samples_per_s:.1f} samples/s", f"{format_time_left(progress.left_s)} left"]
    return "  ".join(parts)


def format_time_left(seconds: float) -> str:
    """``42 s``, ``7 min``, ``1 h 05 min``: no more precise than the estimate."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def trained_to_dict(result: TrainingResult) -> dict[str, Any]:
    """The result of ``pretrain`` or ``finetune`` as JSON types."""
    same = ("samples", "best_score", "best_interval_s", "reference_interval_s", "searched_interval_s")
    values = {name: getattr(result, name) for name in same}
    return {"folder": str(result.folder), "steps": result.step, **values, "complete": result.is_complete}


def print_trained(result: TrainingResult) -> None:
    """Print the scores against the greedy heuristic, and the paths of the files."""
    state = "complete" if result.is_complete else "stopped"
    print(f"{state}: {result.step} of {result.steps} steps, {result.samples} samples")
    for line in reached_lines(result.best_score, result.best_interval_s, result.reference_interval_s):
        print(line)
    if result.searched_interval_s is not None:
        print(
            f"search      {format_duration(result.searched_interval_s)}, by optimize in 2 s without a policy"
        )
    if result.plan_file is not None:
        print(f"plan        {result.plan_file}")
    print(f"policy      {result.policy_file}")


def reached_lines(
    best_score: float | None, best_interval_s: float | None, reference_interval_s: float | None
) -> Iterator[str]:
    """The scores of a training run against the greedy heuristic."""
    if best_score is not None:
        yield f"validation  {math.exp(best_score):.3f}x the greedy heuristic, best of 16 proposals"
    if best_interval_s is not None:
        against = "greedy finds no valid plan"
        if reference_interval_s is not None:
            against = f"{reference_interval_s / best_interval_s:.3f}x the greedy heuristic"
        yield f"best        {format_duration(best_interval_s)}, {against}"


_SAME: Final = (  # fields with the same name in JSON and in JobProgress
    *("policy", "kind", "state", "step", "steps", "samples", "checkpoint_step", "best_score"),
    *("samples_per_s", "attempts"),
)


def job_to_dict(operation: Operation) -> dict[str, Any]:
    """The last known state of a job, as JSON types."""
    job = operation.latest
    return {
        "name": operation.name,
        **{name: getattr(job, name) for name in _SAME},
        **{name: finite(getattr(job, name)) for name in ("reward", "best_interval_s", "left_s")},
        "created": _iso(job.created),
        "started": _iso(job.started),
        "ended": _iso(job.ended),
    }


def job_result_to_dict(operation: Operation, result: JobResult) -> dict[str, Any]:
    """A finished job as JSON types, without its plan."""
    return {
        **job_to_dict(operation),
        "best_interval_s": result.best_interval_s,
        "reference_interval_s": result.reference_interval_s,
    }


def jobs_table(operations: Sequence[Operation]) -> Table:
    """One row per job."""
    columns = ("operation", "policy", "kind", "state", "step", "samples", "left", "created")
    rows = (
        (
            *(operation.name, job.policy, job.kind, job.state),
            f"{job.step}/{job.steps}" if job.steps else "-",
            job.samples,
            format_time_left(job.left_s) if _is_running(job) else "-",
            f"{job.created:%Y-%m-%d %H:%M:%S} UTC",
        )
        for operation in operations
        for job in [operation.latest]
    )
    return table_of(columns, rows, text=(*columns[:4], "created"))


def job_lines(operation: Operation) -> list[str]:
    """The output of ``jobs get``."""
    job = operation.latest
    lines = [
        f"{operation.name}: {job.kind} of {job.policy!r}, {job.state}",
        f"step        {job.step} of {job.steps}, {job.samples} samples, checkpoint at {job.checkpoint_step}",
    ]
    if job.kind == "finetune" and math.isfinite(job.best_interval_s):
        lines.append(f"best        {format_duration(job.best_interval_s)}")
    lines += reached_lines(job.best_score, None, None)
    if _is_running(job):
        lines.append(f"speed       {job.samples_per_s:.1f} samples/s, {format_time_left(job.left_s)} left")
    times = {"created": job.created, "started": job.started, "ended": job.ended}
    said = [f"{name} {time:%Y-%m-%d %H:%M:%S} UTC" for name, time in times.items() if time is not None]
    return [*lines, f"times       {', '.join(said)}, attempt {job.attempts}"]


def result_lines(result: JobResult) -> list[str]:
    """The result of a finished job."""
    job = result.progress
    return [
        f"complete: {job.step} of {job.steps} steps, {job.samples} samples",
        *reached_lines(job.best_score, result.best_interval_s, result.reference_interval_s),
        f"policy      {result.policy}",
    ]


def _is_running(job: JobProgress) -> bool:
    return job.state == "RUNNING" and job.step > 0


def _iso(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()
