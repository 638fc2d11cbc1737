"""The limits of a plan, useful changes, and the cost of moving each kernel to another stage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from go_opt.common.units import format_bytes, format_duration
from go_opt.explanations.moves import Move, Mover
from go_opt.explanations.terms import KernelPart, TensorPart, Term
from go_opt.report.explanation import LEAST_GAIN, change_lines
from go_opt.report.op_explanation import because_text, change_text
from go_opt.report.page.subject import Subject
from go_opt.report.parts.plan_lines import copies_lines, memory_lines, origin_lines
from go_opt.report.parts.term_lines import idle_line, path_lines, slack_line
from go_opt.report.parts.wording import named_stage, share_of_inferences

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
