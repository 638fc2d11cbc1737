"""What a page says of a valid plan: its stages along the pipeline, figures of ``explain`` and of the file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, cast, get_args

import numpy as np
from numpy.typing import NDArray

from go_opt.common.files import read_json
from go_opt.common.units import format_bytes, format_duration, format_ratio
from go_opt.env import Metrics, Target
from go_opt.env.evaluation import evaluate_plan
from go_opt.env.model.metrics import objective_s
from go_opt.errors import PlanError
from go_opt.explanations import PlanExplanation
from go_opt.explanations.moves import Move, Mover
from go_opt.explanations.terms import Loads, Term, terms_of
from go_opt.explanations.uses import ChipUse, LinkUse
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.report.explanation import (
    change_lines,
    closing_lines,
    helps,
    move_texts,
    waiting_text,
)
from go_opt.report.parts.plan_lines import (
    Fact,
    answer_facts,
    bound_fact,
    change_facts,
    ends_text,
    fused_text,
    model_facts,
    path_facts,
    simulated_fact,
    unpaired_facts,
)
from go_opt.report.parts.wording import StageNames, binds, named_stage
from go_opt.result import OPTIMAL_GAP, Objective, Status
from go_opt.search.final_simulation import simulation_note
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


_SAME: Final = 1e-9  # relative difference below which bounds are equal


@dataclass(frozen=True)
class Claims:
    """Claims of a plan file about the search that made it; None if missing."""

    objective: Objective | None = None
    status: Status | None = None
    lower_bound_s: float | None = None


def claims_of(path: str | Path) -> Claims:
    """The claims of a plan file, without malformed ones.

    Raises:
      PlanError: the file is missing or not JSON.
    """
    data = read_json(path, "plan file", PlanError)
    facts: Mapping[str, Any] = data if isinstance(data, dict) else {}
    objective, status, bound = (facts.get(name) for name in ("objective", "status", "lower_bound_s"))
    is_bound = isinstance(bound, int | float) and math.isfinite(bound) and bound > 0
    return Claims(
        cast("Objective", objective) if objective in get_args(Objective) else None,
        cast("Status", status) if status in get_args(Status) else None,
        float(cast("float", bound)) if is_bound else None,
    )


def fact_rows(subject: Subject, claims: Claims) -> list[dict[str, str]]:
    """The objective and bottleneck, unknown ops, states, changes of ops, simulation, bound and status."""
    explanation, graph = subject.explanation, subject.graph
    on_host = () if explanation.states is None else explanation.states.on_host
    facts = (
        *answer_facts(
            subject.metrics,
            explanation.objective,
            subject.names.term(subject.metrics.bottleneck),
            explanation.path,
        ),
        *model_facts(graph, subject.target.native_dtype, on_host),
        *unpaired_facts(graph),
        *change_facts(explanation.rewrites, explanation.splits),
        *_simulated(subject),
        *_bound(subject, claims),
    )
    return [{"label": fact.label, "value": fact.value, "note": fact.note} for fact in facts]


def _simulated(subject: Subject) -> Iterator[Fact]:
    if not subject.target.overlap:
        return  # in the simulator, all transfers overlap with compute
    objective, predicted_s = subject.explanation.objective, subject.whole_s
    seen = evaluate_plan(subject.graph, subject.target, subject.plan, fidelity="simulated")
    simulated_s = objective_s(seen, objective)
    note = simulation_note(subject.graph, subject.target, subject.plan, objective, predicted_s, simulated_s)
    yield simulated_fact(objective, predicted_s, simulated_s, note)


def _bound(subject: Subject, claims: Claims) -> Iterator[Fact]:
    """The bound that the search proved, if the plan file has it, else that of ``go-opt explain``."""
    explanation = subject.explanation
    quick_s = 0.0 if explanation.bound is None else explanation.bound.seconds
    # A claim holds only for the objective that the plan was made for.
    has_claim = claims.lower_bound_s is not None and claims.objective == explanation.objective
    bound_s = claims.lower_bound_s if has_claim and claims.lower_bound_s else quick_s
    reason = "proven by the search"
    if explanation.bound is not None and abs(bound_s - quick_s) <= _SAME * quick_s:
        reason = explanation.bound.reason
    if not has_claim and explanation.is_bound_of_single_chips:
        reason = f"with one chip per stage: {reason}"
    gap = subject.whole_s / bound_s - 1.0 if bound_s > 0 else math.inf
    status = claims.status if has_claim and claims.status else "FEASIBLE"
    if gap <= OPTIMAL_GAP and status != "HEURISTIC":
        status = "OPTIMAL"
    yield bound_fact(bound_s, reason if bound_s > 0 else "")
    proven = "for the cost model, " if status == "OPTIMAL" else ""
    yield Fact("status", status, f"{proven}gap {format_ratio(gap)}")


MOST_TERMS: Final = 3
MOST_PARTS: Final = 8  # per term
MOST_NEXT: Final = 6
MOST_PIECES: Final = 12  # of a critical path
MOST_WORK: Final = 300_000  # moves times ops: about two seconds


def limit_rows(subject: Subject) -> dict[str, Any]:
    """The binding terms, the next ones, useful changes, and the sentences of ``go-opt explain``."""
    explanation = subject.explanation
    is_path = explanation.objective == "latency"
    binding, following = ((), ()) if is_path else (explanation.binding, explanation.next_terms)
    lines = closing_lines(explanation)
    return {
        "binding": [_term(subject, term) for term in binding[:MOST_TERMS]],
        "waits": waiting_text(explanation) or None,
        "more_binding": max(len(binding) - MOST_TERMS, 0),
        "path": _path(subject),
        "next": [
            {"name": subject.names.term(name), "seconds": seconds, "share": subject.share(seconds)}
            for name, seconds in following[:MOST_NEXT]
        ],
        "helps": [
            {"change": change, "seconds": then_s, "share": then_s / subject.whole_s, "note": note}
            for change, then_s, note in helps(explanation)
        ],
        "help_lines": [] if is_path else [*change_lines(explanation)],
        "lines": [line for line in lines if line],
    }


def move_rows(subject: Subject) -> dict[int, list[dict[str, Any]]] | None:
    """By kernel: its moves to the neighbouring stages; None if they are not tried.

    They are not tried for latency, if the plan waits for streamed weights (no closed form), or if
    they would take too long.
    """
    explanation, ops = subject.explanation, subject.graph.num_ops
    if explanation.moves is None:
        return None
    mover = Mover(subject.graph, subject.target, subject.plan, subject.constraints)
    first_op: dict[int, int] = {}
    for op in subject.plan.order.tolist():
        kernel = int(subject.loads.kernel_of[subject.places[subject.graph.op_names[op]]])
        first_op.setdefault(kernel, op)
    if sum(len(mover.stages_next_to(op)) for op in first_op.values()) * ops > MOST_WORK:
        return None
    relays = sum(len(relay.chips) for relay in subject.plan.relays)
    return {
        kernel: [_move(subject, mover.move(op, stage), relays) for stage in mover.stages_next_to(op)]
        for kernel, op in first_op.items()
    }


def _move(subject: Subject, move: Move, relays: int) -> dict[str, Any]:
    change, because = move_texts(move, subject.metrics.interval_s, relays)
    return {
        "to": named_stage(move.chip, move.replicas),
        "along": move.ops_along,
        "interval": format_duration(move.cost.interval_s),
        "change": change,
        "because": because,
    }


def _part(
    subject: Subject, op: str | None, name: str, seconds: float, share: float, note: str
) -> dict[str, Any]:
    place = None if op is None else subject.places.get(op)
    return {"op": place, "name": name, "seconds": seconds, "share": share, "note": note}


def _term(subject: Subject, term: Term) -> dict[str, Any]:
    whole_s, parts = term.seconds or math.inf, []
    for kernel in term.kernels:
        first, share = kernel.ops[0], kernel.seconds * term.own_share / whole_s
        note = fused_text(kernel).removeprefix(", ")
        parts.append(_part(subject, first, first, kernel.seconds, share, note))
    for tensor in term.tensors:
        end = tensor.source or next(iter(tensor.readers), None)
        note = f"{tensor.role} of {format_bytes(tensor.mean_bytes)} over {tensor.link}{ends_text(tensor)}"
        op, share = None if end is None else end.op, tensor.seconds / whole_s
        parts.append(_part(subject, op, tensor.tensor, tensor.seconds, share, note))
    parts.sort(key=lambda part: -part["share"])
    return {
        "name": subject.names.term(term.name),
        "seconds": term.seconds,
        "chips": term.replicas,
        "parts": parts[:MOST_PARTS],
        "left_out": max(len(parts) - MOST_PARTS, 0),
        "left_out_share": sum(part["share"] for part in parts[MOST_PARTS:]),
    }


def _path(subject: Subject) -> dict[str, Any] | None:
    """The critical path of a makespan, with its longest pieces in time order."""
    path = subject.explanation.path
    if path is None:
        return None
    facts = [*path_facts(path, subject.explanation.num_chips)]
    longest = sorted(path.pieces, key=lambda piece: -piece.seconds)[:MOST_PIECES]
    pieces = []
    for piece in sorted(longest, key=lambda piece: piece.start_s):
        note = f"{piece.kind} on {piece.resource}, from {format_duration(piece.start_s)}"
        share = piece.seconds / (path.makespan_s or math.inf)
        pieces.append(_part(subject, piece.name, piece.name, piece.seconds, share, note))
    lines = [": ".join((fact.label.capitalize(), *(fact.said or [fact.value]))) for fact in facts]
    return {"lines": lines, "pieces": pieces}
