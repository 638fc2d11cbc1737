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
from go_opt.explanations.terms import Loads, Terms, terms_of
from go_opt.explanations.uses import ChipUse
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.report.parts.plan_lines import stages_of
from go_opt.report.parts.wording import StageNames, binds, named_stage
from go_opt.solver.problem.user_constraints import UserConstraint

NO_STAGE: Final = -1
# Equal lightness, on which dark text is readable; neighbouring hues are far apart.
COLOURS: Final = (
    "#7cb6f1", "#f8a78a", "#52c6c0", "#eca3d3", "#9bbf76", "#b0b6ff",
    "#dca564", "#66ceec", "#eb95a2", "#7ed3a6", "#c69ee3", "#cdc06d",
)  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """A chip, or the chips of a replicated stage."""

    first_chip: int
    chips: int
    use: ChipUse
    colour: str

    @property
    def name(self) -> str:
        """``chip 3``, or ``chips 4-7``."""
        return named_stage(self.first_chip, self.chips)


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
    def terms(self) -> Terms:
        """The terms of the interval."""
        return terms_of(self.graph, self.target, self.plan)

    @property
    def loads(self) -> Loads:
        """The loads of the plan, with relays as ops."""
        return self.terms.loads

    @cached_property
    def names(self) -> StageNames:
        """The names of the stages."""
        return stages_of(self.explanation)

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, in the order of their first kernels."""
        uses = {use.chip: use for use in self.explanation.chips}
        chips = dict.fromkeys(self.loads.kernel_chip.tolist())
        return tuple(
            Stage(chip, uses[chip].replicas, uses[chip], COLOURS[i % len(COLOURS)])
            for i, chip in enumerate(chips)
        )

    @cached_property
    def stage_of_chip(self) -> NDArray[np.int32]:
        """[D] index into ``stages``, or NO_STAGE."""
        found = np.full(self.target.num_chips, NO_STAGE, dtype=np.int32)
        for i, stage in enumerate(self.stages):
            found[stage.first_chip : stage.first_chip + stage.chips] = i
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


def short(values: NDArray | Iterable[float]) -> list[Any]:
    """Numbers rounded to six digits, which suffice for drawing."""
    return [float(f"{value:.6g}") for value in values]


HOST: Final = "host"


def pipeline_rows(subject: Subject) -> list[dict[str, Any]]:
    """One object per stage, in pipeline order. Loads are shares of the interval or makespan."""
    sends = _sends(subject)
    return [_row(subject, stage, sends.get(i, [])) for i, stage in enumerate(subject.stages)]


def passing_rows(subject: Subject) -> list[dict[str, Any]]:
    """The transfers from chips that run no op."""
    return _sends(subject).get(NO_STAGE, [])


def host_rows(subject: Subject) -> list[dict[str, Any]]:
    """The host's link, in and out."""
    metrics = subject.metrics
    pairs = zip(subject.target.link_names[-2:], metrics.link_s[-2:].tolist(), strict=True)
    return [
        {
            "name": name,
            "seconds": seconds,
            "load": subject.share(seconds),
            "binds": subject.explanation.objective == "throughput" and metrics.bottleneck == name,
        }
        for name, seconds in pairs
    ]


def _row(subject: Subject, stage: Stage, sends: list[dict[str, Any]]) -> dict[str, Any]:
    use, explanation = stage.use, subject.explanation
    busy_s = explanation.busy_s(use)
    last = stage.first_chip + stage.chips - 1
    return {
        "name": stage.name,
        "chips": stage.chips,
        "first": stage.first_chip,
        "colour": stage.colour,
        "ops": use.ops,
        "kernels": use.kernels,
        "busy_s": busy_s,
        "load": subject.share(busy_s),
        "binds": explanation.objective == "throughput"
        and binds(explanation.metrics.bottleneck, stage.first_chip, last),
        "weight_bytes": use.weight_bytes,
        "peak_bytes": use.peak_bytes,
        "stream_bytes": use.stream_bytes,
        "sram_bytes": use.sram_bytes,
        "dearest": use.dearest.ops[0],
        "sends": sends,
    }


def _sends(subject: Subject) -> dict[int, list[dict[str, Any]]]:
    """By sending stage: the busiest link to each other stage, or to chips that only forward."""
    topology, link_s = subject.target.topology, subject.metrics.link_s
    busiest: dict[tuple[int, int | str], int] = {}
    links: dict[tuple[int, int | str], int] = {}
    for link in np.flatnonzero(link_s[: topology.num_links]).tolist():
        ends = _end(subject, int(topology.link_from[link])), _end(subject, int(topology.link_to[link]))
        if ends[0] == HOST or (ends[0] == ends[1] and ends[0] != NO_STAGE):
            continue  # a link inside a stage, whose chips forward each other's results
        pair = int(ends[0]), ends[1]
        links[pair] = links.get(pair, 0) + 1
        if link_s[link] > link_s[busiest.setdefault(pair, link)]:
            busiest[pair] = link
    rows: dict[int, list[dict[str, Any]]] = {}
    for pair, link in busiest.items():
        rows.setdefault(pair[0], []).append(_send(subject, pair[1], link) | {"links": links[pair]})
    return {stage: sorted(sent, key=lambda row: -row["seconds"]) for stage, sent in rows.items()}


def _end(subject: Subject, chip: int) -> int | str:
    return HOST if chip < 0 else int(subject.stage_of_chip[chip])


def _send(subject: Subject, to: int | str, link: int) -> dict[str, Any]:
    term = subject.terms.term(subject.target.num_chips + link)
    seconds = float(subject.metrics.link_s[link])
    return {
        "to": None if to in (HOST, NO_STAGE) else to,
        "name": _name(subject, to, link),
        "link": term.name,
        "seconds": seconds,
        "load": subject.share(seconds),
        "bytes": term.size_bytes,
        "tensors": len(term.tensors),
        "binds": subject.explanation.objective == "throughput" and subject.metrics.bottleneck == term.name,
    }


def _name(subject: Subject, to: int | str, link: int) -> str:
    if to == HOST:
        return "the host"
    if to == NO_STAGE:
        return f"chip {subject.target.topology.link_to[link]}, which runs no op"
    return subject.stages[int(to)].name
