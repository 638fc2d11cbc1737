"""Terms of the interval as text, broken down into their largest parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.table import Table

from go_opt.common.units import format_bytes, format_duration
from go_opt.env.critical_path import CriticalPath
from go_opt.explanations.terms import KernelPart, TensorPart, Term
from go_opt.report.parts.wording import (
    MOST_LINES,
    StageNames,
    counted,
    listed,
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
