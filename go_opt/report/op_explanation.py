"""The explanation of an op as text: its placement, and its moves to every other chip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from rich.console import Console
from rich.table import Table

from go_opt.common.units import format_bytes, format_duration
from go_opt.explanations import OpExplanation
from go_opt.explanations.moves import Cost, Move
from go_opt.explanations.of_op import Read, Written
from go_opt.report.explanation import violation_lines
from go_opt.report.parts.screen import print_lines, print_table
from go_opt.report.parts.wording import (
    StageNames,
    counted,
    named_chips,
    named_place,
    named_places,
    named_stage,
    stage_range,
    table_of,
    turns_text,
)

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
