"""The file of samples: all measurements so far, from which a calibration can resume."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray
from go_opt.common.files import read_json, write_atomically
from go_opt.common.outputs import SAMPLES
from go_opt.env import Target
from go_opt.errors import InvalidInputError, PlanError
from go_opt.model.codecs.plan_json import plan_from_dict, plan_to_dict
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan

FORMAT: Final = SAMPLES.json_format


@dataclass(frozen=True, eq=False)
class Sample:
    """A plan and its measurements."""

    plan: Plan
    interval_s: float  # infinite: the plan does not run
    chip_s: FloatArray | None = None  # [D] seconds of each chip for an inference, if measured

    @property
    def key(self) -> bytes:
        """A key that identifies the plan."""
        plan = self.plan
        return b"".join(
            a.tobytes() for a in (plan.placement, plan.order, plan.fusion_group, plan.replication)
        )

    def seconds_of_chips(self, num_chips: int) -> FloatArray:
        """[D] seconds of each chip; NaN if they were not measured."""
        return np.full(num_chips, np.nan) if self.chip_s is None else self.chip_s


def by_plan(samples: Sequence[Sample]) -> list[list[Sample]]:
    """The samples of each plan, in the order in which plans were first measured."""
    plans: dict[bytes, list[Sample]] = {}
    for sample in samples:
        plans.setdefault(sample.key, []).append(sample)
    return list(plans.values())


def noise(samples: Sequence[Sample]) -> float | None:
    """Standard deviation of the logarithm of a plan's interval; None if no plan was measured twice."""
    logs = [np.log(times / times[0]) for _, times in _intervals(samples)]
    free = sum(len(each) - 1 for each in logs)
    return float(np.sqrt(sum(len(each) * each.var() for each in logs) / free)) if free else None


def fastest(samples: Sequence[Sample]) -> Sample:
    """The plan whose mean interval is least at the upper end of its standard error.

    So a single measurement that was fast by chance does not win over several that were not.
    """
    spread = noise(samples) or 0.0
    means = [
        (replace(one, interval_s=times[0] * float(np.exp(np.log(times / times[0]).mean()))), len(times))
        for one, times in _intervals(samples)
    ]
    ends = [mean.interval_s * np.exp(spread / np.sqrt(count)) for mean, count in means]
    return means[int(np.argmin(ends))][0] if means else samples[0]


def _intervals(samples: Sequence[Sample]) -> list[tuple[Sample, FloatArray]]:
    """Each plan that runs, with its measured intervals."""
    plans = [(same[0], np.array([one.interval_s for one in same])) for same in by_plan(samples)]
    return [(one, intervals) for one, intervals in plans if np.isfinite(intervals).all()]


def read_samples(path: Path, machine: str, graph: Graph, target: Target) -> list[Sample]:
    """The samples of a file; empty if there is no file.

    Raises:
      InvalidInputError: the file is no file of samples, or is for another machine, graph or target.
    """
    if not path.exists():
        return []
    data = read_json(path, "samples")
    try:
        if data["format"] != FORMAT:
            raise ValueError
        samples = [
            Sample(
                plan_from_dict(row["plan"]),
                np.inf if row["interval_s"] is None else float(row["interval_s"]),
                None if row["chip_s"] is None else np.array(row["chip_s"], np.float64),
            )
            for row in data["samples"]
        ]
        if data["machine"] != machine:
            raise PlanError("they are from another machine.")
        for sample in samples:
            sample.plan.check_belongs_to(graph, target.fingerprint)
    except PlanError as error:
        problem = f"cannot be resumed: {error}"
    except (ValueError, KeyError, TypeError):
        problem = "are no samples of a calibration."
    else:
        return samples
    raise InvalidInputError(
        f"samples {str(path)!r} {problem} Delete the file, or give another -o.", field="out"
    )


def write_samples(path: Path, machine: str, samples: Sequence[Sample]) -> None:
    """Write the file atomically."""
    rows = [
        {
            "plan": plan_to_dict(sample.plan),
            "interval_s": sample.interval_s if np.isfinite(sample.interval_s) else None,
            "chip_s": None if sample.chip_s is None else sample.chip_s.tolist(),
        }
        for sample in samples
    ]
    write_atomically(path, json.dumps({"format": FORMAT, "machine": machine, "samples": rows}))
