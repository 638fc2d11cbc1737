"""Facts of a plan, each in one place: its label, value and note on a page, and how lines of text say it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from go_opt.common.units import format_bytes, format_duration
from go_opt.env import Metrics
from go_opt.env.critical_path import CriticalPath
from go_opt.env.rewrites import names as rewritten
from go_opt.explanations.plan_diff import PlanDiff
from go_opt.explanations.terms import KernelPart, TensorPart, Term
from go_opt.explanations.uses import HostState, RewriteUse, SplitUse
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.model.states import sized_states
from go_opt.report.parts.wording import (
    MOST_LINES,
    MOST_NAMES,
    StageNames,
    counted,
    host_state_lines,
    listed,
    named_place,
    named_places,
    named_stage,
    states_texts,
    turns_text,
    unknown_types,
    unpaired_text,
)
from go_opt.result import Objective

MOST_PARTS: Final = 6  # shown per term
MOST_TERMS: Final = 3  # shown in full
_MOST_NAMED: Final = 3
_MOST_PLACES: Final = 3
_ROUNDING: Final = 1e-12  # relative rounding error of float sums
_SAID: Final = {
    "kernel": "kernel",
    "transfer": "transfer",
    "wait": "wait for a link",
    "host in": "read from the host",
    "host out": "write to the host",
}
IDLE: Final = {
    "kernel": "kernels of other chips",
    "link": "busy links",
    "transfer": "transfers",
    "host": "the host",
    "nothing": "nothing left to do",
}


class Fact(NamedTuple):
    """A figure with its name."""

    label: str
    value: str
    note: str = ""
    said: Sequence[str] = ()  # lines of text; empty: the value, a comma and the note

    def lines(self) -> Iterator[str]:
        texts = self.said or [", ".join(filter(None, (self.value, self.note)))]
        return (f"{self.label:<11} {text}" for text in texts)


def lines_of(facts: Iterable[Fact]) -> list[str]:
    """The lines of all facts."""
    return [line for fact in facts for line in fact.lines()]


def model_facts(graph: Graph, native_dtype: str | None, on_host: Iterable[HostState] = ()) -> Iterator[Fact]:
    """Ops of unknown type, and states on chips and on the host."""
    if types := unknown_types(graph.unknown_ops):
        more = [f"{len(types) - MOST_LINES} more types of ops"] * (len(types) > MOST_LINES)
        value = counted(len(graph.unknown_ops), "op")
        yield Fact("unknown", value, listed(types, MOST_LINES), [*types[:MOST_LINES], *more])
    if texts := states_texts(sized_states(graph, native_dtype)):
        value = str(len(graph.states) + len(graph.host_states))
        yield Fact("states", value, listed(texts, MOST_LINES), texts)
    if kept := list(on_host):
        texts = [*host_state_lines(kept)]
        yield Fact("host", str(len(kept)), listed(texts, MOST_LINES), texts)


def unpaired_facts(graph: Graph) -> Iterator[Fact]:
    """Inputs that look like states and are none."""
    if text := unpaired_text(graph.unpaired_states, graph.bindings.states):
        yield Fact("unpaired", counted(len(graph.unpaired_states), "input"), text, [text])


def change_facts(rewrites: Sequence[RewriteUse], splits: Sequence[SplitUse]) -> Iterator[Fact]:
    """How ops were rewritten and split."""
    if rewrites:
        value, said = counted(sum(len(use.ops) for use in rewrites), "product"), [*rewrite_lines(rewrites)]
        yield Fact("rewritten", value, "; ".join(said), said)
    if splits:
        named = listed([f"{use.op} into {use.parts}" for use in splits], _MOST_NAMED)
        yield Fact("split", counted(len(splits), "op"), named, [*split_lines(splits)])


def answer_facts(
    metrics: Metrics,
    objective: Objective,
    bottleneck: str,
    path: CriticalPath | None,
    against: str = "",
    sequences: int = 1,
) -> Iterator[Fact]:
    """The objective and its bottleneck first, then the other metrics.

    Args:
      bottleneck: its name, in which stages have all their chips.
      path: the critical path; None if it is not known.
      against: how the objective compares with another plan's.
      sequences: in flight.
    """
    rate, interval = f"{metrics.throughput_per_s:.6g} inferences/s", format_duration(metrics.interval_s)
    compared = f", {against}" if against else ""
    if objective == "latency":
        yield Fact("makespan", format_duration(metrics.makespan_s), f"one inference alone{compared}")
        if path is not None:
            yield from path_facts(path)
        bound = f"as a pipeline, bound by {bottleneck}"
        yield Fact("interval", interval, f"{rate} {bound}", [f"{interval} ({rate}) {bound}"])
        return
    yield Fact("interval", interval, f"{rate}{compared}", [f"{interval} ({rate}){compared}"])
    if sequences > 1:
        yield Fact("sequences", f"{sequences} in flight", "each with its own state")
    yield Fact("latency", format_duration(metrics.latency_s), f"alone {format_duration(metrics.makespan_s)}")
    yield Fact("bottleneck", bottleneck)


def simulated_fact(objective: Objective, predicted_s: float, simulated_s: float, note: str) -> Fact:
    """The simulated objective, and ``note``: why it differs."""
    if not math.isfinite(simulated_s):
        return Fact("simulated", "does not run", note, [f"does not run{': ' * bool(note)}{note}"])
    what = "makespan" if objective == "latency" else "interval"
    ratio = f"{simulated_s / predicted_s:.3f}x the predicted {what}" if predicted_s > 0 else ""
    return Fact("simulated", format_duration(simulated_s), ": ".join(filter(None, (ratio, note))))


def bound_fact(bound_s: float, reason: str) -> Fact:
    """A lower bound of the objective, 0 for none."""
    value = format_duration(bound_s or math.inf)
    return Fact("bound", value, reason, [f"{value}: {reason}"])


def path_facts(path: CriticalPath, num_chips: int = 0) -> Iterator[Fact]:
    """The resources that bind the makespan, and the kinds of pieces on the critical path.

    Given the number of chips, also how much later kernels may start without a longer makespan, and the causes
    of idle time, as shares of the time of all chips.
    """
    places = [f"{name} {_of_makespan(path, seconds)}" for name, seconds in path.by_resource[:_MOST_PLACES]]
    resource, seconds = path.by_resource[0] if path.by_resource else ("", 0.0)
    said = [f"{', '.join(places)} of the critical path"]
    yield Fact("bottleneck", resource, f"{format_duration(seconds)} of the critical path", said)
    kinds = [
        f"{_counted(number, kind)} {_of_makespan(path, seconds)}" for kind, number, seconds in path.by_kind
    ]
    yield Fact("path", ", ".join(kinds))
    if not num_chips:
        return
    tight = sum(kernel.slack_s <= _ROUNDING * path.makespan_s for kernel in path.kernels)
    slack_s = sorted(kernel.slack_s for kernel in path.kernels)
    median, most = format_duration(slack_s[len(slack_s) // 2]), format_duration(slack_s[-1])
    yield Fact("slack", f"0 of {counted(tight, 'kernel')}, median {median}, at most {most}")
    all_s = num_chips * path.makespan_s
    causes = sorted(path.idle_s().items(), key=lambda item: -item[1])
    parts = [f"{IDLE[cause]} {seconds / all_s:.0%}" for cause, seconds in causes if seconds > 0]
    yield Fact("idle", f"{', '.join(parts) or 'never'}, of the time of {counted(num_chips, 'chip')}")


def _counted(number: int, kind: str) -> str:
    if kind == "wait":
        return f"{number} wait{'s' if number > 1 else ''} for links"
    return counted(number, _SAID[kind]) if " " not in _SAID[kind] else _SAID[kind]


def _of_makespan(path: CriticalPath, seconds: float) -> str:
    share = f" ({seconds / path.makespan_s:.0%})" if path.makespan_s > 0 else ""
    return f"{format_duration(seconds)}{share}"


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
        sums = term.by_bound_s | {"transfers": sum(part.seconds for part in term.tensors)}
        texts = ", ".join(f"{format_duration(s)} {name}" for name, s in sums.items() if s > 0)
        yield f"{stages.term(term.name)}: {counted(len(term.kernels), 'kernel')}, {texts}"
        if term.replicas > 1:
            whole = format_duration(sum(kernel.seconds for kernel in term.kernels))
            means = "; transfers are means of all inferences" if term.tensors else ""
            yield f"  {whole} an inference, of which {turns_text(term.own_share, term.replicas)}{means}"
    else:
        what = counted(len(term.tensors), "tensor")
        yield f"{term.name} carries {format_bytes(term.size_bytes)} of {what}"
    kernels = [
        (kernel.seconds, kernel.seconds * term.own_share, f"`{kernel.ops[0]}`{fused_text(kernel)}")
        for kernel in term.kernels
    ]
    tensors = []
    for part in term.tensors:
        over = f"{part.link}: " if term.kernels else ""
        what = "" if part.role == "activation" else f"{part.role} "
        text = f"{over}{format_bytes(part.mean_bytes)} of {what}`{part.tensor}`{ends_text(part)}"
        tensors.append((part.seconds, part.seconds, text))
    for parts, kind in ((kernels, "kernel"), (tensors, "tensor")):
        for seconds, charged_s, text in parts[:MOST_PARTS]:
            share = charged_s / term.seconds if term.seconds else 0.0
            yield f"  {format_duration(seconds):>8}  {share:4.0%}  {text}"
        if rest := parts[MOST_PARTS:]:
            rest_s = sum(seconds for seconds, _, _ in rest)
            yield f"  {format_duration(rest_s):>8}        in {counted(len(rest), f'more {kind}')}"


def fused_text(kernel: KernelPart) -> str:
    """What stands behind the first op of a kernel: how many more it has, and what binds it."""
    fused = f" and {len(kernel.ops) - 1} fused" if len(kernel.ops) > 1 else ""
    work = f"{kernel.flops / 1e6:.4g} MFLOP, " if kernel.flops else ""
    return f"{fused}, {kernel.bound_by} binds ({work}{format_bytes(kernel.moved_bytes)} moved)"


def ends_text(part: TensorPart) -> str:
    """Where a tensor comes from and goes to, and why a link carries fewer bytes than it has."""
    source = readers = share = ""
    if part.source is not None:
        is_own = part.source.op == part.tensor
        place = named_stage(part.source.chip, part.source.replicas) if is_own else named_place(part.source)
        source = f", from {place}"
    if part.readers:
        readers = f", to {named_places(part.readers)}"
    if part.share < 1.0:  # some inferences use the link
        share = f", {format_bytes(part.size_bytes)} in {part.share * 100.0:.3g}% of all inferences"
    return f"{source}{readers}{share}"


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
