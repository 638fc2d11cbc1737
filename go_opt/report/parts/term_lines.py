"""Terms of the interval as text: what each is made of, the largest parts first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from go_opt.common.units import format_bytes, format_duration
from go_opt.explanations.terms import KernelPart, TensorPart, Term
from go_opt.report.parts.stage_names import StageNames, named_stage
from go_opt.report.parts.wording import MOST_LINES, counted, listed, named_place, named_places

MOST_PARTS: Final = 6  # of a term
MOST_TERMS: Final = 3  # in full


def binding_lines(terms: Sequence[Term], stages: StageNames) -> Iterator[str]:
    """Each term once; those with parts of the same seconds are copies of it in other blocks."""
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
    """One term: what it is made of, the largest parts first."""
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
            yield f"  {whole} an inference, of which each chip runs one in {term.replicas}"
    else:
        what = counted(len(term.tensors), "tensor")
        yield f"{term.name} carries {format_bytes(term.size_bytes)} of {what}"
    for kernel in term.kernels[:MOST_PARTS]:
        yield f"  {_share(kernel.seconds, kernel.seconds / term.replicas, term)}  {_kernel(kernel)}"
    yield from _left_out([kernel.seconds for kernel in term.kernels], MOST_PARTS, "kernel")
    for part in term.tensors[:MOST_PARTS]:
        over = f"{part.link}: " if term.kernels else ""
        share = _share(part.seconds, part.seconds, term)
        yield f"  {share}  {over}{format_bytes(part.size_bytes)} of {_tensor(part)}"
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
    some = f", of {part.share:.0%} of all inferences" if part.share < 1.0 else ""
    return f"{what}`{part.tensor}`{source}{readers}{some}"
