"""The figures and limits of a page: those of ``go-opt optimize`` and ``explain``, and claims of the file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast, get_args

from go_opt.common.files import read_json
from go_opt.common.units import format_bytes, format_duration, format_ratio
from go_opt.env.evaluation import evaluate_plan
from go_opt.env.model.metrics import objective_s
from go_opt.errors import PlanError
from go_opt.explanations.moves import Move, Mover
from go_opt.explanations.terms import KernelPart, TensorPart, Term
from go_opt.model.states import sized_states
from go_opt.report.explanation import LEAST_GAIN, because_text, change_lines, change_text
from go_opt.report.page.subject import Subject
from go_opt.report.parts.plan_lines import (
    copies_lines,
    idle_line,
    memory_lines,
    origin_lines,
    path_lines,
    rewrite_lines,
    slack_line,
)
from go_opt.report.parts.wording import (
    MOST_LINES,
    counted,
    host_state_lines,
    listed,
    named_stage,
    share_of_inferences,
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
        cast("Objective", objective) if objective in get_args(Objective) else None,
        cast("Status", status) if status in get_args(Status) else None,
        float(cast("float", bound)) if is_bound else None,
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


MOST_TERMS: Final = 3
MOST_PARTS: Final = 8  # per term
MOST_NEXT: Final = 6
MOST_WORK: Final = 300_000  # moves times ops: about two seconds


def limit_rows(subject: Subject) -> dict[str, Any]:
    """The binding terms, the next ones, useful changes, and the sentences of ``go-opt explain``."""
    explanation = subject.explanation
    of_interval = explanation.objective == "throughput"
    return {
        "binding": [_term(subject, term) for term in explanation.binding[:MOST_TERMS]] if of_interval else [],
        # If chips wait for streamed weights, the interval exceeds the largest term.
        "waits": f"{explanation.metrics.bottleneck}, {format_duration(subject.whole_s)} in the simulator"
        if of_interval and explanation.metrics.waits
        else None,
        "more_binding": max(len(explanation.binding) - MOST_TERMS, 0) if of_interval else 0,
        "path": _path(subject),
        "next": [
            {"name": subject.names.term(name), "seconds": seconds, "share": subject.share(seconds)}
            for name, seconds in (explanation.next_terms[:MOST_NEXT] if of_interval else ())
        ],
        "helps": [*_helps(subject)],
        "help_lines": [*change_lines(explanation)] if of_interval else [],
        "lines": [
            line
            for lines in (memory_lines(explanation), copies_lines(explanation), origin_lines(explanation))
            for line in lines
            if line
        ],
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
    return {
        "to": named_stage(move.chip, move.replicas),
        "along": move.ops_along,
        "interval": format_duration(move.cost.interval_s),
        "change": change_text(subject.metrics.interval_s, move),
        "because": because_text(relays, move),
    }


def _term(subject: Subject, term: Term) -> dict[str, Any]:
    parts = [_kernel(subject, term, kernel) for kernel in term.kernels]
    parts += [_tensor(subject, term, part) for part in term.tensors]
    parts.sort(key=lambda part: -part["share"])
    return {
        "name": subject.names.term(term.name),
        "seconds": term.seconds,
        "chips": term.replicas,
        "parts": parts[:MOST_PARTS],
        "left_out": max(len(parts) - MOST_PARTS, 0),
        "left_out_share": sum(part["share"] for part in parts[MOST_PARTS:]),
    }


def _kernel(subject: Subject, term: Term, kernel: KernelPart) -> dict[str, Any]:
    work = f"{kernel.flops / 1e6:.4g} MFLOP, " if kernel.flops else ""
    fused = f" and {len(kernel.ops) - 1} fused" if len(kernel.ops) > 1 else ""
    return {
        "op": subject.places[kernel.ops[0]],
        "name": kernel.ops[0] + fused,
        "seconds": kernel.seconds,
        "share": kernel.seconds * term.own_share / term.seconds if term.seconds else 0.0,
        "note": f"{kernel.bound_by} binds: {work}{format_bytes(kernel.moved_bytes)} moved",
    }


def _tensor(subject: Subject, term: Term, part: TensorPart) -> dict[str, Any]:
    source = part.source or next(iter(part.readers), None)
    way = "" if part.source is None else f" from {named_stage(part.source.chip, part.source.replicas)}"
    return {
        "op": None if source is None else subject.places.get(source.op),
        "name": part.tensor,
        "seconds": part.seconds,
        "share": part.seconds / term.seconds if term.seconds else 0.0,
        "note": f"{part.role} of {format_bytes(part.mean_bytes)}{way} over {part.link}"
        + share_of_inferences(part),
    }


def _path(subject: Subject) -> dict[str, Any] | None:
    """The critical path of a makespan, with its longest pieces in time order."""
    path = subject.explanation.path
    if path is None:
        return None
    idle = idle_line(path, subject.explanation.num_chips)
    longest = sorted(sorted(path.pieces, key=lambda piece: -piece.seconds)[:12], key=lambda p: p.start_s)
    return {
        "lines": [_sentence(line) for line in (*path_lines(path), slack_line(path), idle)],
        "pieces": [
            {
                "name": piece.name,
                "op": subject.places.get(piece.name),
                "note": f"{piece.kind} on {piece.resource}, from {format_duration(piece.start_s)}",
                "seconds": piece.seconds,
                "share": piece.seconds / path.makespan_s if path.makespan_s else 0.0,
            }
            for piece in longest
        ],
    }


def _sentence(line: str) -> str:
    """``Slack: …`` from a line with its label in a column."""
    label, text = line.split(maxsplit=1)
    return f"{label.capitalize()}: {text}"


def _helps(subject: Subject) -> Iterator[dict[str, Any]]:
    """The changes of the package that gain enough to show, best first."""
    explanation, reached_s = subject.explanation, subject.whole_s
    for what_if in explanation.what_ifs:
        is_interval = explanation.objective == "throughput"
        then_s = what_if.interval_s if is_interval else what_if.makespan_s
        if then_s < reached_s * (1.0 - LEAST_GAIN):
            binds = f"then {subject.names.term(what_if.bottleneck)} binds" if is_interval else ""
            yield {"change": what_if.change, "seconds": then_s, "share": then_s / reached_s, "note": binds}
