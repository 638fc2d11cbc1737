"""The head of a page: the figures of ``go-opt optimize``, from the plan and from claims in its file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast, get_args

from go_opt.common.files import read_json
from go_opt.common.units import format_duration, format_ratio
from go_opt.env.evaluation import evaluate_plan
from go_opt.env.model.metrics import objective_s
from go_opt.errors import PlanError
from go_opt.model.states import sized_states
from go_opt.report.page.subject import Subject
from go_opt.report.parts.plan_lines import rewrite_lines
from go_opt.report.parts.wording import (
    MOST_LINES,
    counted,
    host_state_lines,
    listed,
    states_texts,
    unknown_types,
    unpaired_text,
)
from go_opt.result import OPTIMAL_GAP, Objective, Status
from go_opt.search.final_simulation import simulation_note

_MOST_NAMED: Final = 3  # splits
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
        cast(Objective, objective) if objective in get_args(Objective) else None,
        cast(Status, status) if status in get_args(Status) else None,
        float(cast(float, bound)) if is_bound else None,
    )


def fact_rows(subject: Subject, claims: Claims) -> list[dict[str, str]]:
    """The objective and bottleneck, unknown ops, states, changes of ops, simulation, bound and status."""
    answer = (*_answer(subject), *_unknown(subject), *_states(subject))
    answer = (*answer, *_rewrites(subject), *_splits(subject))
    facts = (*answer, *_simulated(subject), *_bound(subject, claims))
    return [{"label": label, "value": value, "note": note} for label, value, note in facts]


_Fact = tuple[str, str, str]


def _unknown(subject: Subject) -> Iterator[_Fact]:
    types = unknown_types(subject.graph.unknown_ops)
    if types:
        yield "unknown", counted(len(subject.graph.unknown_ops), "op"), listed(types, MOST_LINES)


def _states(subject: Subject) -> Iterator[_Fact]:
    graph = subject.graph
    texts = states_texts(sized_states(graph, subject.target.native_dtype))
    if texts:
        yield "states", str(len(graph.states) + len(graph.host_states)), listed(texts, MOST_LINES)
    use = subject.explanation.states
    if use is not None and use.on_host:
        yield "on the host", str(len(use.on_host)), listed([*host_state_lines(use.on_host)], MOST_LINES)
    if text := unpaired_text(graph.unpaired_states, graph.bindings.states):
        yield "unpaired", counted(len(graph.unpaired_states), "input"), text


def _rewrites(subject: Subject) -> Iterator[_Fact]:
    rewrites = subject.explanation.rewrites
    if rewrites:
        yield (
            "rewritten",
            counted(sum(len(use.ops) for use in rewrites), "product"),
            "; ".join(rewrite_lines(rewrites)),
        )


def _splits(subject: Subject) -> Iterator[_Fact]:
    splits = subject.explanation.splits
    if splits:
        named = ", ".join(f"{use.op} into {use.parts}" for use in splits[:_MOST_NAMED])
        more = f" and {len(splits) - _MOST_NAMED} more" if len(splits) > _MOST_NAMED else ""
        yield "split", f"{len(splits)} op{'s' * (len(splits) > 1)}", f"{named}{more}"


def _answer(subject: Subject) -> Iterator[_Fact]:
    metrics = subject.metrics
    interval, rate = format_duration(metrics.interval_s), f"{metrics.throughput_per_s:.6g} inferences/s"
    binds = subject.names.term(metrics.bottleneck)
    path = subject.explanation.path
    if subject.explanation.objective == "latency":
        yield "makespan", format_duration(metrics.makespan_s), "one inference alone"
        yield "interval", interval, f"{rate} as a pipeline, bound by {binds}"
        if path is not None:
            resource, seconds = path.by_resource[0]
            yield "bottleneck", resource, f"{format_duration(seconds)} of the critical path"
        return
    yield "interval", interval, rate
    yield "latency", format_duration(metrics.latency_s), f"alone {format_duration(metrics.makespan_s)}"
    yield "bottleneck", binds, ""


def _simulated(subject: Subject) -> Iterator[_Fact]:
    if not subject.target.overlap:
        return  # in the simulator, all transfers overlap with compute
    objective, predicted_s = subject.explanation.objective, subject.whole_s
    seen = evaluate_plan(subject.graph, subject.target, subject.plan, fidelity="simulated")
    simulated_s = objective_s(seen, objective)
    note = simulation_note(subject.graph, subject.target, subject.plan, objective, predicted_s, simulated_s)
    if not math.isfinite(simulated_s):
        yield "simulated", "does not run", note
        return
    what = "makespan" if objective == "latency" else "interval"
    ratio = f"{simulated_s / predicted_s:.3f}x the predicted {what}" if predicted_s > 0 else ""
    yield "simulated", format_duration(simulated_s), ": ".join(filter(None, (ratio, note)))


def _bound(subject: Subject, claims: Claims) -> Iterator[_Fact]:
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
    yield "bound", format_duration(bound_s or math.inf), reason if bound_s > 0 else ""
    proven = "for the cost model, " if status == "OPTIMAL" else ""
    yield "status", status, f"{proven}gap {format_ratio(gap)}"
