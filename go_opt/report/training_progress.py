"""Text about a training run: its progress on stderr once a second, and its result."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from go_opt.common.units import format_duration

if TYPE_CHECKING:
    from go_opt.agents.training.job import Progress
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
    return {
        "folder": str(result.folder),
        "steps": result.step,
        "samples": result.samples,
        "best_score": result.best_score,
        "best_interval_s": result.best_interval_s,
        "reference_interval_s": result.reference_interval_s,
        "searched_interval_s": result.searched_interval_s,
        "complete": result.is_complete,
    }


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
