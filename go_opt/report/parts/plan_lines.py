"""Lines of an explanation: terms and their largest parts, memory, copies, and the origin of the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from rich.table import Table

from go_opt.common.units import format_bytes, format_duration
from go_opt.env import Metrics
from go_opt.env.critical_path import CriticalPath
from go_opt.env.peak_memory import Held
from go_opt.env.rewrites import names as rewritten
from go_opt.explanations import PlanExplanation
from go_opt.explanations.plan_diff import PlanDiff
from go_opt.explanations.terms import KernelPart, TensorPart, Term
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
    named_places,
    named_stage,
    share_of_inferences,
    table_of,
    turns_text,
)

MOST_PARTS: Final = 6  # shown per term
MOST_TERMS: Final = 3  # shown in full
_SAID: Final = {
    "kernel": "kernel",
    "transfer": "transfer",
    "wait": "wait for a link",
    "host in": "read from the host",
    "host out": "write to the host",
}
_IDLE: Final = {
    "kernel": "kernels of other chips",
    "link": "busy links",
    "transfer": "transfers",
    "host": "the host",
    "nothing": "nothing left to do",
}
_MOST_PLACES: Final = 3
_MOST_PIECES: Final = 16
_ROUNDING: Final = 1e-12  # relative rounding error of float sums


def binding_lines(terms: Sequence[Term], stages: StageNames) -> Iterator[str]:
    """Each distinct term once; terms whose parts take the same seconds are shown together."""
    alike: dict[tuple[float, ...], list[Term]] = {}
    for term in terms:
        seconds = [kernel.seconds for kernel in term.kernels] + [part.seconds for part in term.tensors]
        alike.setdefault(tuple(round(part_s, 12) for part_s in seconds), []).append(term)
    for first, *others in list(alike.values())[:MOST_TERMS]:
        yield from term_lines(first, stages)
        if others:
            names = listed([stages.term(term.name) for term in others], MOST_LINES)
            yield (
                f"{names}: kernels and tensors of the same cost"
                if first.kernels
                else f"{names}: the same bytes"
            )


def term_lines(term: Term, stages: StageNames) -> Iterator[str]:
    """One term with its parts, largest first."""
    if term.kernels:
        sums = {
            "compute": sum(k.compute_s for k in term.kernels if k.compute_s >= k.sram_s),
            "SRAM traffic": sum(k.sram_s for k in term.kernels if k.compute_s < k.sram_s),
            "overhead": sum(k.overhead_s for k in term.kernels),
            "measured": sum(k.measured_s for k in term.kernels),
            "transfers": sum(part.seconds for part in term.tensors),
        }
        parts = ", ".join(f"{format_duration(s)} {name}" for name, s in sums.items() if s > 0)
        yield f"{stages.term(term.name)}: {counted(len(term.kernels), 'kernel')}, {parts}"
        if term.replicas > 1:
            whole = format_duration(sum(kernel.seconds for kernel in term.kernels))
            means = "; transfers are means of all inferences" if term.tensors else ""
            yield f"  {whole} an inference, of which {turns_text(term.own_share, term.replicas)}{means}"
    else:
        what = counted(len(term.tensors), "tensor")
        yield f"{term.name} carries {format_bytes(term.size_bytes)} of {what}"
    for kernel in term.kernels[:MOST_PARTS]:
        yield f"  {_share(kernel.seconds, kernel.seconds * term.own_share, term)}  {_kernel(kernel)}"
    yield from _left_out([kernel.seconds for kernel in term.kernels], MOST_PARTS, "kernel")
    for part in term.tensors[:MOST_PARTS]:
        over = f"{part.link}: " if term.kernels else ""
        share = _share(part.seconds, part.seconds, term)
        yield f"  {share}  {over}{format_bytes(part.mean_bytes)} of {_tensor(part)}"
    yield from _left_out([part.seconds for part in term.tensors], MOST_PARTS, "tensor")


def _share(seconds: float, charged_s: float, term: Term) -> str:
    share = charged_s / term.seconds if term.seconds else 0.0
    return f"{format_duration(seconds):>8}  {share:4.0%}"


def _left_out(seconds: Sequence[float], shown: int, what: str) -> Iterator[str]:
    if len(seconds) > shown:
        rest = seconds[shown:]
        yield f"  {format_duration(sum(rest)):>8}        in {counted(len(rest), f'more {what}')}"


def _kernel(kernel: KernelPart) -> str:
    fused = f" and {len(kernel.ops) - 1} fused" if len(kernel.ops) > 1 else ""
    work = f"{kernel.flops / 1e6:.4g} MFLOP, " if kernel.flops else ""
    moved = format_bytes(kernel.moved_bytes)
    return f"`{kernel.ops[0]}`{fused}, {kernel.bound_by} binds ({work}{moved} moved)"


def _tensor(part: TensorPart) -> str:
    what = "" if part.role == "activation" else f"{part.role} "
    if part.source is None:
        source = ""
    elif part.source.op == part.tensor:
        source = f" ({named_stage(part.source.chip, part.source.replicas)})"
    else:
        source = f", from {named_place(part.source)}"
    readers = "" if not part.readers else f", to {named_places(part.readers)}"
    return f"{what}`{part.tensor}`{source}{readers}{share_of_inferences(part)}"


def path_lines(path: CriticalPath) -> Iterator[str]:
    """The resources that bind the makespan, and the kinds of pieces on the critical path."""
    places = [f"{name} {_of_makespan(path, seconds)}" for name, seconds in path.by_resource[:_MOST_PLACES]]
    yield f"bottleneck  {', '.join(places)} of the critical path"
    kinds = [
        f"{_counted(number, kind)} {_of_makespan(path, seconds)}" for kind, number, seconds in path.by_kind
    ]
    yield f"path        {', '.join(kinds)}"


def slack_line(path: CriticalPath) -> str:
    """The slack of kernels: how much later they may start without a longer makespan."""
    tight = sum(kernel.slack_s <= _ROUNDING * path.makespan_s for kernel in path.kernels)
    slack_s = sorted(kernel.slack_s for kernel in path.kernels)
    median, most = format_duration(slack_s[len(slack_s) // 2]), format_duration(slack_s[-1])
    return f"slack       0 of {counted(tight, 'kernel')}, median {median}, at most {most}"


def idle_line(path: CriticalPath, num_chips: int) -> str:
    """The causes of idle time, as shares of the time of all chips."""
    all_s = num_chips * path.makespan_s
    causes = sorted(path.idle_s().items(), key=lambda item: -item[1])
    parts = [f"{_IDLE[cause]} {seconds / all_s:.0%}" for cause, seconds in causes if seconds > 0]
    return f"idle        {', '.join(parts) or 'never'}, of the time of {counted(num_chips, 'chip')}"


def idle_table(path: CriticalPath) -> Table:
    """One row per chip that runs a kernel: its busy time, and its idle time by cause."""
    table = table_of(("chip", "runs", *_IDLE.values()))
    for chip in sorted({kernel.chip for kernel in path.kernels}):
        runs_s = sum(kernel.seconds for kernel in path.kernels if kernel.chip == chip)
        cells = [format_duration(seconds) if seconds else "-" for seconds in path.idle_s(chip).values()]
        table.add_row(str(chip), format_duration(runs_s), *cells)
    return table


def path_table(path: CriticalPath) -> Table:
    """One row per piece of the critical path in time order, limited to the longest."""
    table = table_of(("begins", "takes", "share", "piece", "where", "which is"))
    longest = sorted(range(len(path.pieces)), key=lambda i: -path.pieces[i].seconds)[:_MOST_PIECES]
    for i in sorted(longest):
        piece = path.pieces[i]
        table.add_row(
            format_duration(piece.start_s) if piece.start_s else "0",
            format_duration(piece.seconds),
            f"{piece.seconds / path.makespan_s:.0%}",
            piece.kind,
            piece.resource,
            f"`{piece.name}`",
        )
    if len(path.pieces) > len(longest):
        rest = [path.pieces[i].seconds for i in set(range(len(path.pieces))) - set(longest)]
        table.caption = f"and {counted(len(rest), 'shorter piece')} of {format_duration(sum(rest))} in all"
    return table


def _counted(number: int, kind: str) -> str:
    if kind == "wait":
        return f"{number} wait{'s' if number > 1 else ''} for links"
    return counted(number, _SAID[kind]) if " " not in _SAID[kind] else _SAID[kind]


def _of_makespan(path: CriticalPath, seconds: float) -> str:
    share = f" ({seconds / path.makespan_s:.0%})" if path.makespan_s > 0 else ""
    return f"{format_duration(seconds)}{share}"


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
