"""What differs between two plans of a model, or of two versions of it, op by op name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from go_opt.model.plan import Plan
from go_opt.model.start import OpStart, Start


@dataclass(frozen=True)
class Move:
    """Ops that one plan has on some chips, and the other on others."""

    before: tuple[int, int]  # the first chip of their stage, and its number of chips
    after: tuple[int, int]
    ops: tuple[str, ...]  # in the order of execution of the later plan


@dataclass(frozen=True)
class PlanDiff:
    """Everything that differs between an earlier and a later plan."""

    in_both: int  # ops
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    moves: tuple[Move, ...]  # by chips
    fused_otherwise: tuple[str, ...]  # ops that share their kernel with other ops
    relays_before: tuple[tuple[str, int], ...]  # tensor and chip, of the earlier plan alone
    relays_after: tuple[tuple[str, int], ...]
    clones_before: tuple[tuple[str, int], ...]  # op and chip
    clones_after: tuple[tuple[str, int], ...]
    forwards_before: tuple[int, ...]  # first chips of stages that forward weights
    forwards_after: tuple[int, ...]

    @property
    def num_moved(self) -> int:
        """Ops on other chips."""
        return sum(len(move.ops) for move in self.moves)


def plan_diff(before: Start, after: Start) -> PlanDiff:
    """Compare two plans, given with the names of their ops.

    Only ops that both have are compared: a kernel that lost an op of which the other plan knows
    nothing is the same.
    """
    earlier, later = before.ops, after.ops
    shared = sorted(earlier.keys() & later.keys(), key=lambda op: later[op].rank)
    moves: dict[tuple[tuple[int, int], tuple[int, int]], list[str]] = {}
    for op in shared:
        where = _stage(earlier[op]), _stage(later[op])
        if where[0] != where[1]:
            moves.setdefault(where, []).append(op)
    kernels = [_kernels(choices.ops, shared) for choices in (before, after)]
    relays = [_relays(choices.plan) for choices in (before, after)]
    clones = [_clones(choices.plan) for choices in (before, after)]
    forwards = [set(choices.plan.forwards) if choices.plan else set() for choices in (before, after)]
    return PlanDiff(
        in_both=len(shared),
        only_before=tuple(op for op in earlier if op not in later),
        only_after=tuple(op for op in later if op not in earlier),
        moves=tuple(Move(*where, tuple(ops)) for where, ops in sorted(moves.items())),
        fused_otherwise=tuple(op for op in shared if kernels[0][op] != kernels[1][op]),
        relays_before=tuple(sorted(relays[0] - relays[1])),
        relays_after=tuple(sorted(relays[1] - relays[0])),
        clones_before=tuple(sorted(clones[0] - clones[1])),
        clones_after=tuple(sorted(clones[1] - clones[0])),
        forwards_before=tuple(sorted(forwards[0] - forwards[1])),
        forwards_after=tuple(sorted(forwards[1] - forwards[0])),
    )


def _stage(choice: OpStart) -> tuple[int, int]:
    return choice.chip, choice.replication


def _kernels(ops: Mapping[str, OpStart], shared: Sequence[str]) -> dict[str, frozenset[str]]:
    """The ops of the kernel of each op, of those that both plans have."""
    members: dict[int, list[str]] = {}
    for op in shared:
        members.setdefault(ops[op].kernel, []).append(op)
    return {op: frozenset(kernel) for kernel in members.values() for op in kernel}


def _relays(plan: Plan | None) -> set[tuple[str, int]]:
    return {(relay.tensor, chip) for relay in plan.relays for chip in relay.chips} if plan else set()


def _clones(plan: Plan | None) -> set[tuple[str, int]]:
    return {(clone.op, clone.chip) for clone in plan.clones} if plan else set()
