"""Lines below the tables of an explanation: memory, copies, and the origin of the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from go_opt.common.units import format_bytes, format_duration
from go_opt.env import Metrics
from go_opt.env.peak_memory import Held
from go_opt.env.rewrites import names as rewritten
from go_opt.explanations import PlanExplanation
from go_opt.explanations.plan_diff import PlanDiff
from go_opt.explanations.uses import RewriteUse, SplitUse
from go_opt.model.plan import Plan
from go_opt.report.parts.wording import (
    MOST_LINES,
    MOST_NAMES,
    StageNames,
    counted,
    listed,
    named_chips,
    named_place,
    named_stage,
)

_MOST_NAMED: Final = 3


def stages_of(explanation: PlanExplanation) -> StageNames:
    """The names of the plan's stages."""
    return StageNames({use.chip: use.replicas for use in explanation.chips})


def memory_lines(explanation: PlanExplanation) -> Iterator[str]:
    """The chip with the fullest memory, and the streamed weights."""
    peak = explanation.fullest
    use = next(use for use in explanation.chips if use.chip == peak.chip)
    at = f" at `{peak.ops[0]}`" if peak.ops else ""
    named = [f"{_held(held)} of `{held.tensor}`" for held in peak.held]
    yield ""
    stages = stages_of(explanation)
    yield (
        f"Fullest memory: {stages.named(use.chip)}, "
        f"{use.memory_share:.0%} of {format_bytes(use.sram_bytes)}: "
        f"{format_bytes(use.weight_bytes)} of weights and {format_bytes(peak.peak_bytes)} of activations{at}"
        f"{': ' if named else ''}{listed(named, MOST_NAMES)}"
    )
    yield _buffers_line(explanation, stages)
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


def _held(held: Held) -> str:
    return f"{format_bytes(held.held_bytes)}{' in two buffers' if held.crosses else ''}"


def copies_lines(explanation: PlanExplanation) -> Iterator[str]:
    """Relays, and their costs."""
    stages = stages_of(explanation)
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


def origin_lines(explanation: PlanExplanation) -> Iterator[str]:
    """The methods that made the plan."""
    yield ""
    yield "Placed by: " + ", ".join(f"{name} ({counted(ops, 'op')})" for name, ops in explanation.provenance)


def rewrite_lines(rewrites: Sequence[RewriteUse]) -> Iterator[str]:
    """A line for all ops that products take over, and one for each of the first that became one."""
    for rule, taken in _TAKEN.items():
        ops = list(dict.fromkeys(use.op for use in rewrites if use.rule == rule))
        if ops:
            verb = f"takes over the {taken} it" if len(ops) == 1 else f"take over the {taken} them"
            named = listed([f"`{op}`" for op in ops], MOST_NAMES)
            yield f"{counted(len(ops), 'product')} {verb}: {named}"
    for rule, shared in ((rewritten.MERGE, "tensor"), (rewritten.BATCH, "weight")):
        joined = [use for use in rewrites if use.rule == rule]
        for use in joined[:_MOST_NAMED]:
            source = f"`{use.source}`" if use.source else f"the same {shared}"
            named = listed([f"`{op}`" for op in use.ops], MOST_NAMES)
            yield f"{use.number} {use.kind}s read {source} and are one: {named}"
        if len(joined) > _MOST_NAMED:
            products = sum(use.number for use in joined[_MOST_NAMED:])
            yield f"and {products} more, which read {len(joined) - _MOST_NAMED} {shared}s"


_TAKEN: Final = {
    rewritten.FOLD: "scales and shifts behind",
    rewritten.TRANSPOSE: "Transposes next to",
    rewritten.BIAS: "biases behind",
}


def split_lines(splits: Sequence[SplitUse]) -> Iterator[str]:
    """Lines for copies, parts that share the work, and sums; one for each of the heaviest others."""
    for number, copies in Counter(use.parts for use in splits if not use.factors).items():
        yield f"{counted(copies, 'op')} on each of {number} chips"
    splits = [use for use in splits if use.factors]
    for is_summed, ending in ((False, ""), (True, ", and whose results are added")):
        uses = [use for use in splits if use.is_shared and use.is_summed == is_summed]
        if uses:
            parts = " or ".join(str(number) for number in sorted({use.parts for use in uses}))
            ops = f"{counted(len(uses), 'op')} {_along(uses)}"
            yield f"{ops} into {parts} parts, which share the work of an inference{ending}"
    splits = [use for use in splits if not use.is_shared]
    for use in splits[:_MOST_NAMED]:
        output = "" if use.joined else "; no chip joins its output"
        # Weights that fit may be too many beside those of other ops, or slow to read: no chip is to blame.
        room = f", a chip has {format_bytes(use.sram_bytes)}" if use.weight_bytes > use.sram_bytes else ""
        yield (
            f"{use.op!r} is split into {use.parts} {_along([use])}, each with a piece of its weights: "
            f"they take {format_bytes(use.weight_bytes)}{room}{output}"
        )
    others = splits[_MOST_NAMED:]
    if others:
        least, most = others[-1].weight_bytes, others[0].weight_bytes
        yield f"and {len(others)} more, whose weights take {format_bytes(least)} to {format_bytes(most)}"


def _along(uses: Sequence[SplitUse]) -> str:
    factors = sorted({factor for use in uses for factor in use.factors})
    return "along " + listed([repr(factor) for factor in factors], MOST_NAMES)


def diff_lines(diff: PlanDiff, costed: Sequence[tuple[Plan, Metrics]]) -> Iterator[str]:
    """The differences; ``costed`` is the earlier and the later plan with their metrics, or empty."""
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
    ]
    if diff.forwards_before or diff.forwards_after:
        rows.append(("forwarding", diff.forwards_before, diff.forwards_after))
    if diff.rewrites_before or diff.rewrites_after:
        rows.append(("rewrites", diff.rewrites_before, diff.rewrites_after))
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
