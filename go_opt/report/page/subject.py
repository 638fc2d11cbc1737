"""The data behind a page: a valid plan, its explanation, and its stages in pipeline order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from go_opt.env import Metrics, Target
from go_opt.explanations import PlanExplanation
from go_opt.explanations.terms import Loads, terms_of
from go_opt.explanations.uses import ChipUse, LinkUse
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.report.parts.wording import StageNames, binds
from go_opt.solver.problem.user_constraints import UserConstraint

NO_STAGE: Final = -1
# Equal lightness, on which dark text is readable; neighbouring hues are far apart.
COLOURS: Final = (
    "#7cb6f1", "#f8a78a", "#52c6c0", "#eca3d3", "#9bbf76", "#b0b6ff",
    "#dca564", "#66ceec", "#eb95a2", "#7ed3a6", "#c69ee3", "#cdc06d",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Subject:
    """A valid plan. Axes: ``N`` ops including relays, ``M`` kernels, ``D`` chips."""

    graph: Graph
    target: Target
    plan: Plan
    explanation: PlanExplanation
    constraints: tuple[UserConstraint, ...] = ()

    @property
    def metrics(self) -> Metrics:
        return self.explanation.metrics

    @property
    def whole_s(self) -> float:
        """The time that loads are shares of: the interval, or the makespan if the objective is latency."""
        return self.explanation.reached_s

    def share(self, seconds: float) -> float:
        """``seconds`` as a share of ``whole_s``."""
        return seconds / self.whole_s if self.whole_s else 0.0

    @cached_property
    def loads(self) -> Loads:
        """The loads of the plan, with relays as ops."""
        return terms_of(self.graph, self.target, self.plan).loads

    @cached_property
    def names(self) -> StageNames:
        """The names of the stages."""
        return StageNames({use.chip: use.replicas for use in self.explanation.chips})

    @cached_property
    def stages(self) -> tuple[ChipUse, ...]:
        """The chips in use, a stage each, in the order of their first kernels."""
        uses = {use.chip: use for use in self.explanation.chips}
        return tuple(uses[chip] for chip in dict.fromkeys(self.loads.kernel_chip.tolist()))

    @cached_property
    def stage_of_chip(self) -> NDArray[np.int32]:
        """[D] index into ``stages``, or NO_STAGE."""
        found = np.full(self.target.num_chips, NO_STAGE, dtype=np.int32)
        for i, use in enumerate(self.stages):
            found[use.chip : use.chip + use.replicas] = i
        return found

    @cached_property
    def kernel_stage(self) -> NDArray[np.int32]:
        """[M] index into ``stages``."""
        stage: NDArray[np.int32] = self.stage_of_chip[self.loads.kernel_chip]
        return stage

    @cached_property
    def places(self) -> dict[str, int]:
        """Op name (including relays) -> its index in the page's lists."""
        return {name: i for i, name in enumerate(self.loads.graph.op_names)}


def colour(stage: int) -> str:
    """The colour of a stage, by its number."""
    return COLOURS[stage % len(COLOURS)]


def short(values: NDArray | Iterable[float]) -> list[Any]:
    """Numbers rounded to six digits, which suffice for drawing."""
    return [float(f"{value:.6g}") for value in values]


HOST: Final = "host"


def pipeline_rows(subject: Subject) -> list[dict[str, Any]]:
    """One object per stage, in pipeline order. Loads are shares of the interval or makespan."""
    sends, explanation = _sends(subject), subject.explanation
    same = ("ops", "kernels", "weight_bytes", "peak_bytes", "stream_bytes", "sram_bytes")
    return [
        {name: getattr(use, name) for name in same}
        | {
            "name": subject.names.named(use.chip),
            "chips": use.replicas,
            "first": use.chip,
            "colour": colour(i),
            "busy_s": explanation.busy_s(use),
            "load": subject.share(explanation.busy_s(use)),
            "binds": explanation.objective == "throughput"
            and binds(explanation.metrics.bottleneck, use.chip, use.chip + use.replicas - 1),
            "dearest": use.dearest.ops[0],
            "sends": sends.get(i, []),
        }
        for i, use in enumerate(subject.stages)
    ]


def passing_rows(subject: Subject) -> list[dict[str, Any]]:
    """The transfers from chips that run no op."""
    return _sends(subject).get(NO_STAGE, [])


def host_rows(subject: Subject) -> list[dict[str, Any]]:
    """The host's link, in and out."""
    pairs = zip(subject.target.link_names[-2:], subject.metrics.link_s[-2:].tolist(), strict=True)
    return [{"name": name} | _busy(subject, name, seconds) for name, seconds in pairs]


def _busy(subject: Subject, link: str, seconds: float) -> dict[str, Any]:
    is_bottleneck = subject.explanation.objective == "throughput" and subject.metrics.bottleneck == link
    return {"seconds": seconds, "load": subject.share(seconds), "binds": is_bottleneck}


def _sends(subject: Subject) -> dict[int, list[dict[str, Any]]]:
    """By sending stage: the busiest link to each other stage, or to chips that only forward."""
    topology = subject.target.topology
    of_pair: dict[tuple[int, int | str], list[tuple[LinkUse, str]]] = {}
    for use in subject.explanation.links:
        link = subject.target.link_names.index(use.name)
        if link >= topology.num_links or topology.link_from[link] < 0:
            continue  # of the host
        start, chip = subject.stage_of_chip[topology.link_from[link]], int(topology.link_to[link])
        end: int | str = HOST if chip < 0 else int(subject.stage_of_chip[chip])
        if start == end != NO_STAGE:
            continue  # within a stage, whose chips forward each other's results
        name = "the host" if end == HOST else f"chip {chip}, which runs no op"
        if end not in (HOST, NO_STAGE):
            name = subject.names.named(subject.stages[int(end)].chip)
        of_pair.setdefault((int(start), end), []).append((use, name))
    rows: dict[int, list[dict[str, Any]]] = {}
    for (start, end), links in of_pair.items():
        use, name = max(links, key=lambda one: one[0].seconds)
        row = {"to": None if end in (HOST, NO_STAGE) else end, "name": name, "link": use.name}
        row |= {"bytes": use.size_bytes, "tensors": use.tensors, "links": len(links)}
        rows.setdefault(start, []).append(row | _busy(subject, use.name, use.seconds))
    return {stage: sorted(sent, key=lambda row: -row["seconds"]) for stage, sent in rows.items()}
