"""Texts that explanations share: names, places, lists, tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Final, TypeVar

from rich.table import Table

from go_opt.common.units import format_bytes
from go_opt.frontends.recording.states import star_of

if TYPE_CHECKING:
    from go_opt.explanations.terms import Place
    from go_opt.explanations.uses import HostState
    from go_opt.model.graph import UnknownOp
    from go_opt.model.plan import Plan
    from go_opt.model.states import SizedState

_N = TypeVar("_N", int, float)
MOST_NAMES: Final = 3
MOST_LINES: Final = 12  # shown per list
_LONG: Final = ("which is", "dearest kernel", "because", "description")
_TEXT: Final = ("chip", "link", "then binds", "piece", "where", *_LONG)
_OF_CHIP: Final = re.compile(r"chip (\d+) compute")  # not transfers: these differ between chips of a stage


def counted(count: int, what: str) -> str:
    """``1 op``, ``3 ops``."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def listed(names: Sequence[str], most: int) -> str:
    """The first ``most`` names, and the number of further ones."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def unknown_types(unknown_ops: Sequence[UnknownOp]) -> list[str]:
    """For each op type that no rule has: its ops, and the FLOPs that they were taken to cost."""
    by_type: dict[str, list[UnknownOp]] = {}
    for op in unknown_ops:
        by_type.setdefault(op.op_type, []).append(op)
    return [
        f"{counted(len(ops), 'op')} of type {op_type!r}, such as {ops[0].name!r}, "
        f"taken to cost {sum(op.flops for op in ops):.4g} FLOP"
        for op_type, ops in by_type.items()
    ]


def turns_text(share: float, replicas: int, what: str = "") -> str:
    """How many of all inferences a chip of a stage of ``replicas`` chips runs."""
    if abs(share * replicas - 1.0) < 1e-9:
        return f"each chip runs one{what} in {replicas}"
    part = Fraction(share).limit_denominator(1 << 20)
    return f"this chip runs {part.numerator} in {part.denominator}"


def states_texts(states: Sequence[SizedState]) -> list[str]:
    """For each scope: how many states, their bytes, and some of their names."""
    texts = []
    of = {"sequence": ("of each sequence", " a sequence"), "model": ("of the model", "")}
    for scope, where in sorted({(state.scope, state.where) for state in states}):
        found = [state for state in states if (state.scope, state.where) == (scope, where)]
        pairs = listed([f"{state.read} = {state.next}" for state in found], MOST_NAMES)
        size = format_bytes(sum(state.bytes for state in found))
        kept = ", on the host" if where == "host" else ""
        texts.append(f"{len(found)} {of[scope][0]}, {size}{of[scope][1]}{kept}: {pairs}")
    return texts


def host_state_lines(states: Iterable[HostState]) -> Iterator[str]:
    """Which states stay on the host, what that sends, and why; one line for each kind of reason."""
    whys = {
        "chips": "their ops run on several chips, such as those of {0!r} on {1}",
        "memory": "the memory beside them is too small, such as {3} for {2} of {0!r} on {1}",
        "choice": "no better plan was found that keeps them on the chips",
    }
    kept = list(states)
    for because, why in whys.items():
        found = [state for state in kept if state.because == because]
        if not found:
            continue
        names = listed([repr(state.state) for state in found], MOST_NAMES)
        in_bytes, out_bytes = sum(s.in_bytes for s in found), sum(s.out_bytes for s in found)
        one, stay = found[0], "state stays" if len(found) == 1 else "states stay"
        reason = why.format(
            one.state,
            named_chips(one.chips or (0,)),
            format_bytes(one.needed_bytes),
            format_bytes(one.free_bytes),
        )
        yield (
            f"{len(found)} {stay} on the host ({names}): {format_bytes(in_bytes)} in and "
            f"{format_bytes(out_bytes)} out for each inference, because {reason}"
        )


def unpaired_text(names: Sequence[str], given: Mapping[str, str]) -> str:
    """Which inputs look like states and are none, if any; ``given`` is what the user said of states."""
    if not names:
        return ""
    patterns = [pattern for pattern, following in given.items() if not following]
    if all(any(star_of(pattern, name) is not None for pattern in patterns) for name in names):
        return f"{counted(len(names), 'state')} left to the host: {listed(names, MOST_NAMES)}"
    which = "looks like a state and is none" if len(names) == 1 else "look like states and are none"
    return (
        f"{counted(len(names), 'input')} {which}: {listed(names, MOST_NAMES)}; the host sends and reads "
        "them for each inference, unless --state INPUT=OUTPUT says what they become"
    )


def named_place(place: Place) -> str:
    """An op with the chips of its stage."""
    return f"`{place.op}` ({named_stage(place.chip, place.replicas)})"


def named_places(of: Sequence[Place]) -> str:
    """Ops with their chips, highest chip first."""
    return listed([named_place(place) for place in sorted(of, key=lambda place: -place.chip)], MOST_NAMES)


def named_chips(chips: Iterable[int]) -> str:
    """``chip 3``, ``chips 3-26``, ``chips 3, 5-7``."""
    runs: list[list[int]] = []
    for chip in sorted(chips):
        if runs and chip == runs[-1][1] + 1:
            runs[-1][1] = chip
        else:
            runs.append([chip, chip])
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    return f"chip{'s' if len(runs) > 1 or runs[0][0] < runs[0][1] else ''} {', '.join(texts)}"


def table_of(
    columns: Sequence[str], rows: Iterable[Iterable[object]] = (), text: Sequence[str] = _TEXT
) -> Table:
    """A table; columns named in ``text`` are left-aligned, others right-aligned."""
    table = Table(title=None, header_style="bold", box=None, padding=(0, 1))
    for name in columns:
        table.add_column(name, justify="left" if name in text else "right", no_wrap=name not in _LONG)
    for row in rows:
        table.add_row(*map(str, row))
    return table


def some(shown: Callable[[_N], str], value: _N) -> str:
    """``value`` as ``shown`` writes it; a dash for none."""
    return shown(value) if value else "-"


class StageNames:
    """The names of one plan's stages.

    Args:
      size: number of chips of each stage by its first chip; a missing chip is a stage of one.
    """

    def __init__(self, size: Mapping[int, int]) -> None:
        self._size = size

    @staticmethod
    def of_plan(plan: Plan) -> StageNames:
        return StageNames(dict(zip(plan.placement.tolist(), plan.replication.tolist(), strict=True)))

    def named(self, first_chip: int) -> str:
        """``chip 3``, or ``chips 4-7`` for a replicated stage."""
        return named_stage(first_chip, self._size.get(first_chip, 1))

    def chips(self, first_chips: Iterable[int]) -> list[int]:
        """All chips of the stages with these first chips."""
        return [chip for first in first_chips for chip in range(first, first + self._size.get(first, 1))]

    def term(self, name: str) -> str:
        """The display name of a term: ``chip 4 compute`` becomes ``chips 4-7 compute`` in a stage of four."""
        match = _OF_CHIP.fullmatch(name)
        return f"{self.named(int(match[1]))} compute" if match else name


def binds(bottleneck: str, first_chip: int, last_chip: int) -> bool:
    """Whether the bottleneck is a term of one of these chips."""
    return any(bottleneck.startswith(f"chip {chip} ") for chip in range(first_chip, last_chip + 1))


def named_stage(first_chip: int, size: int) -> str:
    """``chip 3``, or ``chips 4-7`` for several chips."""
    return named_chips(range(first_chip, first_chip + size))


def stage_range(first_chip: int, size: int) -> str:
    """``3``, or ``4-7``."""
    return named_stage(first_chip, size).split()[1]


def stage_cell(first_chip: int, size: int) -> str:
    """The table cell of a stage: ``3``, or ``4-7 x4``."""
    return stage_range(first_chip, size) + (f" x{size}" if size > 1 else "")
