"""The explanations of a whole plan and of an op as text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from rich.console import Console
from rich.table import Table

from go_opt.common.units import format_bytes, format_duration, format_ratio
from go_opt.explanations import OpExplanation, PlanExplanation
from go_opt.explanations.moves import Cost, Move
from go_opt.explanations.of_op import Read, Written
from go_opt.report.parts.plan_lines import (
    binding_lines,
    copies_lines,
    idle_line,
    idle_table,
    memory_lines,
    origin_lines,
    path_lines,
    path_table,
    rewrite_lines,
    slack_line,
    split_lines,
    stages_of,
)
from go_opt.report.parts.screen import print_lines, print_table
from go_opt.report.parts.wording import (
    MOST_LINES,
    StageNames,
    counted,
    host_state_lines,
    listed,
    named_chips,
    named_place,
    named_places,
    named_stage,
    stage_cell,
    stage_range,
    table_of,
    turns_text,
)
from go_opt.result import OPTIMAL_GAP
from go_opt.solver import Violation

MOST_LINKS: Final = 64  # rows of the table of links
LEAST_GAIN: Final = 5e-4  # least relative gain that is shown


def print_plan_explanation(console: Console, explanation: PlanExplanation) -> None:
    """Print the binding terms, the next ones and useful changes, then tables of chips and links."""
    print_lines(console, (*violation_lines(explanation.violations), *summary_lines(explanation)))
    console.print()
    if explanation.path is not None:
        print_table(console, path_table(explanation.path))
        console.print()
        print_table(console, idle_table(explanation.path))
        console.print()
    print_table(console, _chips_table(explanation))
    console.print()
    print_table(console, _links_table(explanation))
    print_lines(console, (*memory_lines(explanation), *copies_lines(explanation), *origin_lines(explanation)))


def violation_lines(violations: Sequence[Violation]) -> Iterator[str]:
    """One line per broken rule."""
    return (f"INVALID, {violation.constraint}: {violation.message}" for violation in violations)


def summary_lines(explanation: PlanExplanation) -> Iterator[str]:
    """The lines before the tables."""
    yield (
        f"{explanation.graph} on {explanation.target}: {explanation.num_ops} ops in "
        f"{explanation.num_kernels} kernels on {explanation.chips_used} of {explanation.num_chips} chips"
    )
    yield from rewrite_lines(explanation.rewrites)
    yield from split_lines(explanation.splits)
    yield from (
        _makespan_lines(explanation) if explanation.objective == "latency" else _interval_lines(explanation)
    )
    yield ""
    yield _bound_line(explanation)


def _makespan_lines(explanation: PlanExplanation) -> Iterator[str]:
    metrics, path = explanation.metrics, explanation.path
    interval = f"{format_duration(metrics.interval_s)} ({metrics.throughput_per_s:.6g} inferences/s)"
    yield f"makespan {format_duration(metrics.makespan_s)} of one inference alone"
    yield f"as a pipeline: interval {interval}"
    yield ""
    if path is not None:
        yield "What binds: the critical path"
        lines = (*path_lines(path), slack_line(path), idle_line(path, explanation.num_chips))
        yield from (f"  {line}" for line in lines)
        yield ""
    yield "What would help, with this plan as it is:"
    helpful = [w for w in explanation.what_ifs if w.makespan_s < metrics.makespan_s * (1.0 - LEAST_GAIN)]
    for what_if in helpful:
        gain = what_if.makespan_s / metrics.makespan_s - 1.0
        yield f"  {what_if.change}: {format_duration(what_if.makespan_s)} ({gain:.1%})"
    if not helpful:
        yield "  none of faster links, compute, memory or host by itself"
    listed = explanation.one_more_chip
    if listed is not None and math.isfinite(listed.makespan_without_s):
        then, now = map(format_duration, (listed.makespan_s, listed.makespan_without_s))
        yield f"A list schedule of the same kernels: {now}, with one more chip {then}"


def _interval_lines(explanation: PlanExplanation) -> Iterator[str]:
    metrics, interval_s = explanation.metrics, explanation.metrics.interval_s
    yield (
        f"interval {format_duration(interval_s)} ({metrics.throughput_per_s:.6g} inferences/s), "
        f"latency {format_duration(metrics.latency_s)}"
    )
    yield ""
    stages = stages_of(explanation)
    names = listed([stages.term(term.name) for term in explanation.binding], MOST_LINES)
    if metrics.waits:
        yield f"What binds: {metrics.bottleneck}, {format_duration(interval_s)} in the simulator"
        yield f"The busiest: {names}, {format_duration(explanation.binding[0].seconds)}"
    elif explanation.states is not None and explanation.states.waits_s >= interval_s * (1.0 - 1e-9):
        yield f"What binds: {metrics.bottleneck} over all sequences in flight, {format_duration(interval_s)}"
        yield f"The busiest: {names}, {format_duration(explanation.binding[0].seconds)}"
    else:
        together = " together" if len(explanation.binding) > 1 else ""
        yield f"What binds{together}: {names}, {format_duration(interval_s)}"
    yield from (f"  {line}" for line in binding_lines(explanation.binding, stages))
    yield from _next_lines(explanation)
    yield ""
    yield from state_lines(explanation)
    yield from _help_lines(explanation)
    yield from (f"  {line}" for line in change_lines(explanation))


def state_lines(explanation: PlanExplanation) -> Iterator[str]:
    """What states take, and one more sequence."""
    states = explanation.states
    if states is None:
        return
    if states.model_bytes:
        yield f"States of the model: {format_bytes(states.model_bytes)}"
    if states.sequence_bytes:
        yield (
            f"States: {format_bytes(states.sequence_bytes)} for each of "
            f"{counted(states.sequences, 'sequence')} in flight, most of them on chip {states.fullest_chip} "
            f"({format_bytes(states.fullest_bytes)})"
        )
    yield from (text[0].upper() + text[1:] for text in host_state_lines(states.on_host))
    if states.waits_s:
        more_s = states.one_more_s
        then = states.one_more_reason if more_s is None else format_duration(more_s)
        yield f"  latency / sequences: {format_duration(states.waits_s)}; with one more sequence: {then}"
    yield ""


def _next_lines(explanation: PlanExplanation) -> Iterator[str]:
    if not explanation.next_terms:
        return
    interval_s, stages = explanation.metrics.interval_s, stages_of(explanation)
    listed = [
        f"{stages.term(name)} {format_duration(seconds)} ({seconds / interval_s - 1.0:.1%})"
        for name, seconds in explanation.next_terms[:4]
    ]
    yield f"Next: {', '.join(listed)}"


def _help_lines(explanation: PlanExplanation) -> Iterator[str]:
    interval_s, stages = explanation.metrics.interval_s, stages_of(explanation)
    waits = explanation.metrics.waits
    yield "What would help, with this plan as it is:"
    helpful = [w for w in explanation.what_ifs if w.interval_s < interval_s * (1.0 - LEAST_GAIN)]
    for what_if in helpful:
        gain = what_if.interval_s / interval_s - 1.0
        binds = stages.term(what_if.bottleneck)
        still = not waits and what_if.bottleneck in {term.name for term in explanation.binding}
        then = "which still binds" if still else f"then {binds} binds"
        yield f"  {what_if.change}: {format_duration(what_if.interval_s)} ({gain:.1%}), {then}"
    if not helpful:
        yield f"  none of faster links, {'' if waits else 'compute, '}memory or host by itself"


def change_lines(explanation: PlanExplanation) -> Iterator[str]:
    """The effects of more speed for what binds, of one more chip, and of the best move of a kernel."""
    interval_s, stages = explanation.metrics.interval_s, stages_of(explanation)
    if explanation.next_terms and not explanation.metrics.waits:
        name, seconds = explanation.next_terms[0]
        most = f"{interval_s / seconds - 1.0:.1%}"
        yield f"beyond {most} of speed for what binds, {stages.term(name)} binds instead"
    resize, moves = explanation.resize, explanation.moves
    if resize is not None:
        giver = "a free one" if resize.giver is None else f"one of {stages.named(resize.giver)}"
        effect = _effect(resize.cost.interval_s, interval_s)
        yield f"one more chip for {stages.named(resize.chip)}, {giver}, {effect}"
    if moves is not None and moves.tried:
        best = ""
        if moves.best is not None:
            to = named_stage(moves.best.chip, moves.best.replicas)
            best = f", the best, `{moves.best_op}` to {to}, {_effect(moves.best.cost.interval_s, interval_s)}"
        tried = f"moving one of these kernels: of {counted(moves.tried, 'move')} tried, {moves.legal} legal"
        yield f"{tried}{best}"


def _effect(then_s: float, interval_s: float) -> str:
    if interval_s <= 0 < then_s:
        return f"makes the interval {format_duration(then_s)}"
    change = then_s / interval_s - 1.0 if interval_s > 0 else 0.0
    if abs(change) < LEAST_GAIN:
        return "leaves the interval as it is"
    verb = "shortens" if change < 0 else "lengthens"
    return f"{verb} the interval to {format_duration(then_s)} ({change:+.1%})"


def _bound_line(explanation: PlanExplanation) -> str:
    bound = explanation.bound
    if bound is None or bound.seconds <= 0:
        return "Bound: none is proven"
    gap = explanation.reached_s / bound.seconds - 1.0
    if gap <= OPTIMAL_GAP:
        reached = "this plan reaches it"
    elif gap < 1.0:
        reached = f"this plan is {format_ratio(gap)} above"
    else:
        reached = f"this plan takes {gap + 1.0:.3g} times that"
    which = " with one chip per stage" if explanation.is_bound_of_single_chips else ""
    what = "a makespan" if explanation.objective == "latency" else "an interval"
    least = f"no plan{which} has {what} below {format_duration(bound.seconds)}"
    return f"Bound: {least}, {reached}: {bound.reason}"


def _chips_table(explanation: PlanExplanation) -> Table:
    """One row per stage: the time of its chips, its most expensive kernel, and its memory."""
    table = table_of(
        ("chip", "ops", "kernels", "busy", "load", "compute", "SRAM", "overhead", "memory", "weights",
         "activations", "streamed", "dearest kernel")
    )  # fmt: skip
    for use in explanation.chips:
        table.add_row(
            stage_cell(use.chip, use.replicas),
            str(use.ops),
            str(use.kernels),
            format_duration(explanation.busy_s(use)),
            f"{explanation.busy_s(use) / explanation.reached_s:.0%}" if explanation.reached_s else "-",
            _part(use.compute_s + use.measured_s),
            _part(use.sram_s),
            _part(use.overhead_s),
            f"{use.memory_share:.0%}",
            format_bytes(use.weight_bytes),
            format_bytes(use.peak_bytes),
            format_bytes(use.stream_bytes) if use.stream_bytes else "-",
            f"{format_duration(use.dearest.seconds)} `{use.dearest.ops[0]}`",
        )
    table.caption = f"{explanation.idle_share:.0%} of the time of all {explanation.num_chips} chips is idle"
    if any(use.replicas > 1 for use in explanation.chips):
        table.caption += (
            "; xN: N chips share the inferences; times are per interval, bytes and the dearest kernel of one "
            "inference"
        )
    return table


def _links_table(explanation: PlanExplanation) -> Table:
    """One row per link: its load, and its largest tensor."""
    table = table_of(("link", "busy", "load", "carries", "tensors", "largest", "which is"))
    fullest = sorted(explanation.links, key=lambda use: -use.seconds)[:MOST_LINKS]
    for use in (use for use in explanation.links if use in fullest):
        table.add_row(
            f"{use.name} (busiest of {use.among})" if use.among > 1 else use.name,
            format_duration(use.seconds),
            f"{use.seconds / explanation.reached_s:.0%}" if explanation.reached_s else "-",
            format_bytes(use.size_bytes),
            str(use.tensors),
            format_bytes(use.largest.mean_bytes),
            f"`{use.largest.tensor}`",
        )
    if len(explanation.links) > len(fullest):
        table.caption = f"and {len(explanation.links) - len(fullest)} links that carry less"
    return table


def _part(seconds: float) -> str:
    return format_duration(seconds) if seconds else "-"


_UPDATES: Final = frozenset({"Scatter", "ScatterElements", "ScatterND", "TensorScatter"})


def print_op_explanation(console: Console, explanation: OpExplanation) -> None:
    """Print the op and its cost, its neighbours, and the cost of each move."""
    print_lines(console, (*violation_lines(explanation.violations), *_op_lines(explanation)))
    if explanation.moves:
        print_table(console, _moves_table(explanation))


def _op_lines(explanation: OpExplanation) -> Iterator[str]:
    work = f", {explanation.flops / 1e6:.4g} MFLOP" if explanation.flops else ""
    yield f"`{explanation.op}` ({explanation.op_type}, {explanation.op_class}, {explanation.dtype}{work})"
    stages = _stages(explanation)
    turns = " in turn" if explanation.replicas > 1 else ""
    yield f"runs on {stages.named(explanation.chip)}{turns}; placed by {explanation.provenance!r}"
    yield from _kernel_lines(explanation)
    yield "reads"
    yield from (f"  {_read(read, stages)}" for read in explanation.reads)
    yield "writes"
    yield from (f"  {_written(written)}" for written in explanation.writes)
    yield from _copy_lines(explanation)
    if explanation.violations:
        return
    only = "only " if len(explanation.free_chips) == 1 else ""
    free = named_chips(stages.chips(explanation.free_chips))
    yield (
        f"With all other kernels where they are, {only}{free} can run it. "
        f"{'Without waits for streamed weights, the' if explanation.waits else 'The'} interval is "
        f"{format_duration(explanation.cost.interval_s)}, and "
        f"{_binds(explanation.cost, stages)} binds{'. Elsewhere:' if explanation.moves else '.'}"
    )


def _kernel_lines(explanation: OpExplanation) -> Iterator[str]:
    kernel = explanation.kernel
    parts = {
        "compute": format_duration(kernel.compute_s),
        f"SRAM traffic of {format_bytes(kernel.moved_bytes)}": format_duration(kernel.sram_s),
        "overhead": format_duration(kernel.overhead_s),
    }
    costs = ", ".join(f"{seconds} {name}" for name, seconds in parts.items())
    costs = "measured" if kernel.bound_by == "measured" else f"{kernel.bound_by} binds: {costs}"
    whose = "its" if explanation.replicas == 1 else "each chip's"
    yield (
        f"kernel {explanation.place_on_chip} of {explanation.kernels_on_chip} on the chip: "
        f"{format_duration(kernel.seconds)} of {whose} {format_duration(explanation.chip_busy_s)}, {costs}"
    )
    if explanation.replicas > 1:
        share = format_duration(kernel.seconds * explanation.own_share)
        turns = turns_text(explanation.own_share, explanation.replicas, " inference")
        yield f"  {share} of the interval: {turns}"
    if explanation.alone is not None:
        late = format_duration(explanation.alone.slack_s)
        then = f"may start {late} later" if explanation.alone.slack_s > 0 else "may not start later"
        yield (
            f"  in one inference alone it begins after {format_duration(explanation.alone.start_s)} and "
            f"{then} without a longer makespan"
        )
    mates = [f"`{op}`" for op in kernel.ops if op != explanation.op]
    if mates:
        yield f"  one kernel with {', '.join(mates)}"


def _copy_lines(explanation: OpExplanation) -> Iterator[str]:
    """Says that an op which changes a part of a tensor moves all of it."""
    if explanation.op_type not in _UPDATES or not explanation.reads:
        return
    whole, *rest = explanation.reads
    written, new = (sum(tensor.size_bytes for tensor in part) for part in (explanation.writes, rest))
    if whole.size_bytes == written and new < written:
        part = f", of which at most {format_bytes(new)} change" if new else ""
        yield f"It copies {format_bytes(written)} of `{whole.tensor}`{part}: no tensor is changed in place."


def _stages(explanation: OpExplanation) -> StageNames:
    return StageNames(
        {explanation.chip: explanation.replicas} | {move.chip: move.replicas for move in explanation.moves}
    )


def _read(read: Read, stages: StageNames) -> str:
    size = format_bytes(read.size_bytes)
    if read.source is None:
        return f"{size} of {read.kind} `{read.tensor}`"
    relayed = f", relayed on {named_chips(stages.chips(read.relayed_on))}" if read.relayed_on else ""
    inside = ", in the same kernel: no traffic" if read.is_in_kernel else ""
    return f"{size} of `{read.tensor}` from {named_place(read.source)}{relayed}{inside}"


def _written(written: Written) -> str:
    to = [named_places(written.readers)] if written.readers else []
    to += ["the host"] if written.is_output else []
    return f"{format_bytes(written.size_bytes)} of `{written.tensor}` to {' and '.join(to) or 'no one'}"


def _moves_table(explanation: OpExplanation) -> Table:
    """One row per stage; adjacent stages with the same reason share a row."""
    table = table_of(("chip", "ops along", "interval", "change", "then binds", "because"))
    stages = _stages(explanation)
    for row in _alike(explanation.chip, explanation.moves):
        first, last = row[0], row[-1]
        table.add_row(
            stage_range(first.chip, first.replicas) if first is last else f"{first.chip} to {_end(last)}",
            _from_to(str(first.ops_along or "-"), str(last.ops_along or "-")),
            _from_to(format_duration(first.cost.interval_s), format_duration(last.cost.interval_s)),
            change_text(explanation.cost.interval_s, first),
            _binds(first.cost, stages) if len(row) == 1 else "",
            because_text(explanation.relays, first),
        )
    return table


def _alike(own_chip: int, moves: Sequence[Move]) -> list[list[Move]]:
    """Groups of adjacent stages that are forbidden for the same reason; each other stage alone."""

    def reason(move: Move) -> tuple[object, ...]:
        # The rule's sentence may name the stage itself, which does not make it a different reason.
        rule = move.forbidden.replace(named_stage(move.chip, move.replicas), "it")
        return (rule, move.blocker, move.chip < own_chip) if move.forbidden else (move.chip,)

    return [list(row) for _, row in groupby(moves, key=reason)]


def _end(move: Move) -> int:
    return move.chip + move.replicas - 1


def _from_to(first: str, last: str) -> str:
    return first if first == last else f"{first} to {last}"


def change_text(interval_s: float, move: Move) -> str:
    """The relative change of the interval by a move."""
    if move.forbidden:
        return "forbidden"
    if interval_s <= 0:
        return "none" if move.cost.interval_s <= 0 else "longer"
    change = move.cost.interval_s / interval_s - 1.0
    return "none" if abs(change) < 5e-5 else f"{change:+.1%}"


def _binds(cost: Cost, stages: StageNames) -> str:
    carried = f" with {format_bytes(cost.bottleneck_bytes)}" if cost.bottleneck_bytes else ""
    return f"{stages.term(cost.bottleneck)}{carried}"


def because_text(relays: int, move: Move) -> str:
    """The rule that a move breaks or the relays it adds to ``relays``, and the op that blocks it most."""
    reasons = []
    if move.forbidden:
        reasons.append(move.forbidden.rstrip("."))
    elif move.relays > relays:
        reasons.append(f"takes {counted(move.relays - relays, 'more relay')}")
    if move.blocker is not None:
        tie = "its kernel reads" if move.reads_blocker else "its kernel is read by"
        reasons.append(f"{tie} {named_place(move.blocker)}")
    return "; ".join(reasons)
