"""The explanations of a whole plan and of an op as text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from rich.console import Console
from rich.table import Table

from go_opt.common.units import format_bytes, format_duration, format_ratio
from go_opt.env.critical_path import CriticalPath
from go_opt.env.model.metrics import objective_s
from go_opt.explanations import OpExplanation, PlanExplanation
from go_opt.explanations.explaining import Read, Written
from go_opt.explanations.moves import Move
from go_opt.report.parts.plan_lines import (
    IDLE,
    binding_lines,
    change_facts,
    lines_of,
    path_facts,
)
from go_opt.report.parts.screen import print_lines, print_table
from go_opt.report.parts.wording import (
    MOST_LINES,
    MOST_NAMES,
    StageNames,
    counted,
    host_state_lines,
    listed,
    named_chips,
    named_place,
    named_places,
    named_stage,
    some,
    stage_cell,
    stage_range,
    table_of,
    turns_text,
)
from go_opt.result import OPTIMAL_GAP
from go_opt.solver import Violation

_MOST_PIECES: Final = 16
MOST_LINKS: Final = 64  # rows of the table of links
LEAST_GAIN: Final = 5e-4  # least relative gain that is shown


def print_plan_explanation(console: Console, explanation: PlanExplanation) -> None:
    """Print the binding terms, the next ones and useful changes, then tables of chips and links."""
    print_lines(console, (*violation_lines(explanation.violations), *summary_lines(explanation)))
    console.print()
    path = explanation.path
    for table in () if path is None else (_path_table(path), _idle_table(path)):
        print_table(console, table)
        console.print()
    print_table(console, _chips_table(explanation))
    console.print()
    print_table(console, _links_table(explanation))
    print_lines(console, closing_lines(explanation))


def violation_lines(violations: Sequence[Violation]) -> Iterator[str]:
    """One line per broken rule."""
    return (f"INVALID, {violation.constraint}: {violation.message}" for violation in violations)


def summary_lines(explanation: PlanExplanation) -> Iterator[str]:
    """The lines before the tables."""
    yield (
        f"{explanation.graph} on {explanation.target}: {explanation.num_ops} ops in "
        f"{explanation.num_kernels} kernels on {explanation.chips_used} of {explanation.num_chips} chips"
    )
    for fact in change_facts(explanation.rewrites, explanation.splits):
        yield from fact.said
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
        facts = path_facts(path, explanation.num_chips)
        yield from (f"  {line}" for line in lines_of(facts))
        yield ""
    yield from _help_lines(explanation)
    more = explanation.one_more_chip
    if more is not None and math.isfinite(more.makespan_without_s):
        then, now = map(format_duration, (more.makespan_s, more.makespan_without_s))
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
    states, waiting = explanation.states, waiting_text(explanation)
    if states is not None and states.waits_s >= interval_s * (1.0 - 1e-9):
        waiting = f"{metrics.bottleneck} over all sequences in flight, {format_duration(interval_s)}"
    if waiting:
        yield f"What binds: {waiting}"
        yield f"The busiest: {names}, {format_duration(explanation.binding[0].seconds)}"
    else:
        together = " together" if len(explanation.binding) > 1 else ""
        yield f"What binds{together}: {names}, {format_duration(interval_s)}"
    yield from (f"  {line}" for line in binding_lines(explanation.binding, stages))
    following = [
        f"{stages.term(name)} {format_duration(seconds)} ({seconds / interval_s - 1.0:.1%})"
        for name, seconds in explanation.next_terms[:4]
    ]
    yield from [f"Next: {', '.join(following)}"] * bool(following)
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


def waiting_text(explanation: PlanExplanation) -> str:
    """What binds if chips wait for streamed weights, as then the interval exceeds the largest term."""
    metrics = explanation.metrics
    waits = metrics.waits and explanation.objective == "throughput"
    return f"{metrics.bottleneck}, {format_duration(metrics.interval_s)} in the simulator" * waits


def helps(explanation: PlanExplanation) -> Iterator[tuple[str, float, str]]:
    """The changes of the package that gain enough to show, best first: seconds then, and what binds."""
    stages, of_interval = stages_of(explanation), explanation.objective == "throughput"
    binding = () if explanation.metrics.waits else [term.name for term in explanation.binding]
    for what_if in explanation.what_ifs:
        then_s = objective_s(what_if, explanation.objective)
        then = f"then {stages.term(what_if.bottleneck)} binds"
        if then_s < explanation.reached_s * (1.0 - LEAST_GAIN):
            still = "which still binds" if what_if.bottleneck in binding else then
            yield what_if.change, then_s, still if of_interval else ""


def _help_lines(explanation: PlanExplanation) -> Iterator[str]:
    yield "What would help, with this plan as it is:"
    found = [*helps(explanation)]
    for change, then_s, note in found:
        gain = f"{format_duration(then_s)} ({then_s / explanation.reached_s - 1.0:.1%})"
        yield f"  {change}: {', '.join(filter(None, (gain, note)))}"
    if not found:
        compute = "" if waiting_text(explanation) else "compute, "
        yield f"  none of faster links, {compute}memory or host by itself"


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
    columns = (
        "chip", "ops", "kernels", "busy", "load", "compute", "SRAM", "overhead", "memory", "weights",
        "activations", "streamed", "dearest kernel",
    )  # fmt: skip
    rows = (
        (
            stage_cell(use.chip, use.replicas),
            use.ops,
            use.kernels,
            format_duration(explanation.busy_s(use)),
            _load(explanation, explanation.busy_s(use)),
            some(format_duration, use.compute_s + use.measured_s),
            some(format_duration, use.sram_s),
            some(format_duration, use.overhead_s),
            f"{use.memory_share:.0%}",
            format_bytes(use.weight_bytes),
            format_bytes(use.peak_bytes),
            some(format_bytes, use.stream_bytes),
            f"{format_duration(use.dearest.seconds)} `{use.dearest.ops[0]}`",
        )
        for use in explanation.chips
    )
    table = table_of(columns, rows)
    table.caption = f"{explanation.idle_share:.0%} of the time of all {explanation.num_chips} chips is idle"
    if any(use.replicas > 1 for use in explanation.chips):
        table.caption += (
            "; xN: N chips share the inferences; times are per interval, bytes and the dearest kernel of one "
            "inference"
        )
    return table


def _links_table(explanation: PlanExplanation) -> Table:
    """One row per link: its load, and its largest tensor."""
    fullest = sorted(explanation.links, key=lambda use: -use.seconds)[:MOST_LINKS]
    rows = (
        (
            f"{use.name} (busiest of {use.among})" if use.among > 1 else use.name,
            format_duration(use.seconds),
            _load(explanation, use.seconds),
            format_bytes(use.size_bytes),
            use.tensors,
            format_bytes(use.largest.mean_bytes),
            f"`{use.largest.tensor}`",
        )
        for use in explanation.links
        if use in fullest
    )
    table = table_of(("link", "busy", "load", "carries", "tensors", "largest", "which is"), rows)
    if len(explanation.links) > len(fullest):
        table.caption = f"and {len(explanation.links) - len(fullest)} links that carry less"
    return table


def _load(explanation: PlanExplanation, seconds: float) -> str:
    return f"{seconds / explanation.reached_s:.0%}" if explanation.reached_s else "-"


def _idle_table(path: CriticalPath) -> Table:
    """One row per chip that runs a kernel: its busy time, and its idle time by cause."""
    rows = []
    for chip in sorted({kernel.chip for kernel in path.kernels}):
        runs_s = sum(kernel.seconds for kernel in path.kernels if kernel.chip == chip)
        idle = (some(format_duration, seconds) for seconds in path.idle_s(chip).values())
        rows.append((chip, format_duration(runs_s), *idle))
    return table_of(("chip", "runs", *IDLE.values()), rows)


def _path_table(path: CriticalPath) -> Table:
    """One row per piece of the critical path in time order, limited to the longest."""
    by_length = sorted(range(len(path.pieces)), key=lambda i: -path.pieces[i].seconds)
    rows = (
        (
            format_duration(piece.start_s) if piece.start_s else "0",
            format_duration(piece.seconds),
            f"{piece.seconds / path.makespan_s:.0%}",
            piece.kind,
            piece.resource,
            f"`{piece.name}`",
        )
        for piece in (path.pieces[i] for i in sorted(by_length[:_MOST_PIECES]))
    )
    table = table_of(("begins", "takes", "share", "piece", "where", "which is"), rows)
    if rest := [path.pieces[i].seconds for i in by_length[_MOST_PIECES:]]:
        table.caption = f"and {counted(len(rest), 'shorter piece')} of {format_duration(sum(rest))} in all"
    return table


def stages_of(explanation: PlanExplanation) -> StageNames:
    """The names of the plan's stages."""
    return StageNames({use.chip: use.replicas for use in explanation.chips})


def closing_lines(explanation: PlanExplanation) -> Iterator[str]:
    """The chip with the fullest memory, the streamed weights, relays, and what made the plan."""
    peak = explanation.fullest
    use = next(use for use in explanation.chips if use.chip == peak.chip)
    at = f" at `{peak.ops[0]}`" if peak.ops else ""
    named = [
        f"{format_bytes(held.held_bytes)}{' in two buffers' * held.crosses} of `{held.tensor}`"
        for held in peak.held
    ]
    yield ""
    stages = stages_of(explanation)
    yield (
        f"Fullest memory: {stages.named(use.chip)}, "
        f"{use.memory_share:.0%} of {format_bytes(use.sram_bytes)}: "
        f"{format_bytes(use.weight_bytes)} of weights and {format_bytes(peak.peak_bytes)} of activations{at}"
        f"{': ' if named else ''}{listed(named, MOST_NAMES)}"
    )
    yield _buffers_line(explanation, stages)
    yield from _streamed_lines(explanation, stages)
    yield from _relay_lines(explanation, stages)
    yield ""
    yield "Placed by: " + ", ".join(f"{name} ({counted(ops, 'op')})" for name, ops in explanation.provenance)


def _streamed_lines(explanation: PlanExplanation, stages: StageNames) -> Iterator[str]:
    if not explanation.streamed:
        return
    yield "Weights that stream from the host each inference, as they do not fit next to the activations:"
    for chip, weights in explanation.streamed[:MOST_LINES]:
        names = listed([f"`{part.tensor}`" for part in weights], MOST_NAMES)
        size = format_bytes(sum(part.size_bytes for part in weights))
        forwarded = sum(part.size_bytes for part in weights if part.share < 1.0)
        way = f", {format_bytes(forwarded)} of it forwarded from chip to chip" if forwarded else ""
        yield f"  {stages.named(chip)}: {size}{way}, of {names}"
    if len(explanation.streamed) > MOST_LINES:
        yield f"  and {len(explanation.streamed) - MOST_LINES} more chips"


def _buffers_line(explanation: PlanExplanation, stages: StageNames) -> str:
    """Where buffers end on the chip that they fill most."""
    most = max(explanation.buffers, key=lambda chip: chip.end / chip.sram_bytes)
    holes_bytes = most.end - most.least_end
    holes = f", {format_bytes(holes_bytes)} of it holes" if holes_bytes else ""
    return (
        f"Addresses (--json lists them): the {counted(len(most.buffers), 'buffer')} of "
        f"{stages.named(most.chip)} end at {format_bytes(most.end)}{holes}"
    )


def _relay_lines(explanation: PlanExplanation, stages: StageNames) -> Iterator[str]:
    if explanation.relays:
        total_s = sum(relay.seconds for relay in explanation.relays)
        yield ""
        yield (
            f"Relays, copies of tensors on chips that they would pass, which the triangle rule forbids: "
            f"{counted(len(explanation.relays), 'tensor')}, {format_duration(total_s)} on all chips"
        )
        for relay in explanation.relays[:MOST_LINES]:
            start = named_stage(relay.source.chip, relay.source.replicas)
            way = f"from {start} over {named_chips(stages.chips(relay.chips))}"
            yield (
                f"  {format_bytes(relay.size_bytes)} of `{relay.tensor}` {way} "
                f"to {named_place(relay.farthest)}: {format_duration(relay.seconds)}, "
                f"{format_bytes(relay.moved_bytes)} moved"
            )
        if len(explanation.relays) > MOST_LINES:
            yield f"  and {len(explanation.relays) - MOST_LINES} more"


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
        f"{_binds(explanation, stages)} binds{'. Elsewhere:' if explanation.moves else '.'}"
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
    stages = _stages(explanation)
    rows = (
        (
            stage_range(first.chip, first.replicas) if first is last else f"{first.chip} to {_end(last)}",
            _from_to(str(first.ops_along or "-"), str(last.ops_along or "-")),
            _from_to(format_duration(first.cost.interval_s), format_duration(last.cost.interval_s)),
            change,
            _binds(first, stages) if first is last else "",
            because,
        )
        for first, *_, last in ((row[0], *row) for row in _alike(explanation.chip, explanation.moves))
        for change, because in [move_texts(first, explanation.cost.interval_s, explanation.relays)]
    )
    return table_of(("chip", "ops along", "interval", "change", "then binds", "because"), rows)


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


def _binds(of: OpExplanation | Move, stages: StageNames) -> str:
    carried_bytes = of.cost.bottleneck_bytes
    carried = f" with {format_bytes(carried_bytes)}" if carried_bytes else ""
    return f"{stages.term(of.cost.bottleneck)}{carried}"


def move_texts(move: Move, interval_s: float, relays: int) -> tuple[str, str]:
    """The relative change of the interval by a move, and why.

    The rule that it breaks or the relays that it adds to ``relays``, and the op that blocks it most.
    """
    then_s = move.cost.interval_s
    change = then_s / interval_s - 1.0 if interval_s > 0 else math.inf if then_s > 0 else 0.0
    text = "longer" if interval_s <= 0 else f"{change:+.1%}"
    reasons = []
    if move.forbidden:
        text = "forbidden"
        reasons.append(move.forbidden.rstrip("."))
    elif move.relays > relays:
        reasons.append(f"takes {counted(move.relays - relays, 'more relay')}")
    if move.blocker is not None:
        tie = "its kernel reads" if move.reads_blocker else "its kernel is read by"
        reasons.append(f"{tie} {named_place(move.blocker)}")
    return "none" if abs(change) < 5e-5 and not move.forbidden else text, "; ".join(reasons)
