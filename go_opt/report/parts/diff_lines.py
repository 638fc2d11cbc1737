"""The text of ``go-opt diff``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from go_opt.common.units import format_duration
from go_opt.env import Metrics
from go_opt.model.plan import Plan
from go_opt.model.plan_diff import PlanDiff
from go_opt.report.parts.stage_names import StageNames, named_stage
from go_opt.report.parts.wording import MOST_LINES, MOST_NAMES, counted, listed


def diff_lines(diff: PlanDiff, costed: Sequence[tuple[Plan, Metrics]]) -> Iterator[str]:
    """What differs; ``costed`` are the earlier and the later plan with what they cost, or nothing."""
    if costed:
        yield from _cost_lines(*costed)
    yield f"ops         {diff.in_both} in both plans, {diff.num_moved} on other chips"
    for move in diff.moves[:MOST_LINES]:
        way = f"{named_stage(*move.before)} to {named_stage(*move.after)}"
        yield f"            {way}: {counted(len(move.ops), 'op')}, {listed(move.ops, MOST_NAMES)}"
    if len(diff.moves) > MOST_LINES:
        yield f"            and {len(diff.moves) - MOST_LINES} more pairs of stages"
    for name, ops in (("only first", diff.only_before), ("only second", diff.only_after)):
        if ops:
            yield f"{name:<11} {counted(len(ops), 'op')}, {listed(ops, MOST_NAMES)}"
    fused = diff.fused_otherwise
    names = f": {listed(fused, MOST_NAMES)}" if fused else ""
    yield f"kernels     {counted(len(fused), 'op')} fused otherwise{names}"
    rows: list[tuple[str, Sequence[object], Sequence[object]]] = [
        ("relays", diff.relays_before, diff.relays_after),
        ("clones", diff.clones_before, diff.clones_after),
    ]
    if diff.forwards_before or diff.forwards_after:
        rows.append(("forwarding", diff.forwards_before, diff.forwards_after))
    for name, before, after in rows:
        yield f"{name:<11} {len(before)} of the first plan alone, {len(after)} of the second alone"


def _cost_lines(first: tuple[Plan, Metrics], second: tuple[Plan, Metrics]) -> Iterator[str]:
    (_, before), (_, after) = first, second
    for name, field in (("interval", "interval_s"), ("latency", "latency_s")):
        first_s, second_s = getattr(before, field), getattr(after, field)
        ratio = f", {second_s / first_s:.3f}x" if first_s > 0.0 else ""
        yield f"{name:<11} {format_duration(first_s)} to {format_duration(second_s)}{ratio}"
    binding = [StageNames.of_plan(plan).term(metrics.bottleneck) for plan, metrics in (first, second)]
    yield f"bottleneck  {binding[0]} to {binding[1]}"
