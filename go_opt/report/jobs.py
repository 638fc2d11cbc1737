"""Training jobs of a service as text and as JSON types."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from rich.table import Table

from go_opt.common.units import format_duration
from go_opt.report.parts.wording import table_of
from go_opt.report.training_progress import format_time_left, reached_lines
from go_opt.result_json import finite
from go_opt.service.client.operation import JobProgress, JobResult, Operation

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
    table = table_of(columns, text=(*columns[:4], "created"))
    for operation in operations:
        job = operation.latest
        table.add_row(
            operation.name,
            job.policy,
            job.kind,
            job.state,
            f"{job.step}/{job.steps}" if job.steps else "-",
            str(job.samples),
            format_time_left(job.left_s) if _is_running(job) else "-",
            f"{job.created:%Y-%m-%d %H:%M:%S} UTC",
        )
    return table


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
