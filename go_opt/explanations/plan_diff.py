"""The differences between two plans of one model, or of two versions of a model, by op name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from go_opt.model.graph import Rewrite
from go_opt.model.plan import Plan
from go_opt.model.start import OpStart, Start


@dataclass(frozen=True)
class Move:
    """Ops that the two plans place on different chips."""

    before: tuple[int, int]  # first chip of their stage, and number of chips
    after: tuple[int, int]
    ops: tuple[str, ...]  # in execution order of the later plan


@dataclass(frozen=True)
class PlanDiff:
    """All differences between an earlier and a later plan."""

    in_both: int  # number of ops
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    moves: tuple[Move, ...]  # sorted by chips
    fused_otherwise: tuple[str, ...]  # ops whose kernels contain different ops in the two plans
    relays_before: tuple[tuple[str, int], ...]  # tensor and chip, in the earlier plan only
    relays_after: tuple[tuple[str, int], ...]
    forwards_before: tuple[int, ...]  # first chips of stages that forward weights
    forwards_after: tuple[int, ...]
    rewrites_before: tuple[Rewrite, ...] = ()
    rewrites_after: tuple[Rewrite, ...] = ()

    @property
    def num_moved(self) -> int:
        """The number of ops that moved to other chips."""
        return sum(len(move.ops) for move in self.moves)


def plan_diff(before: Start, after: Start) -> PlanDiff:
    """Compare two plans, given with the names of their ops.

    Only ops of both plans are compared. A kernel that only lost an op unknown to the other plan
    counts as unchanged.
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
    forwards = [set(choices.plan.forwards) if choices.plan else set() for choices in (before, after)]
    rewrites = [set(choices.plan.rewrites) if choices.plan else set() for choices in (before, after)]
    return PlanDiff(
        in_both=len(shared),
        only_before=tuple(op for op in earlier if op not in later),
        only_after=tuple(op for op in later if op not in earlier),
        moves=tuple(Move(*where, tuple(ops)) for where, ops in sorted(moves.items())),
        fused_otherwise=tuple(op for op in shared if kernels[0][op] != kernels[1][op]),
        relays_before=tuple(sorted(relays[0] - relays[1])),
        relays_after=tuple(sorted(relays[1] - relays[0])),
        forwards_before=tuple(sorted(forwards[0] - forwards[1])),
        forwards_after=tuple(sorted(forwards[1] - forwards[0])),
        rewrites_before=tuple(sorted(rewrites[0] - rewrites[1])),
        rewrites_after=tuple(sorted(rewrites[1] - rewrites[0])),
    )


def _stage(choice: OpStart) -> tuple[int, int]:
    return choice.chip, choice.replication


def _kernels(ops: Mapping[str, OpStart], shared: Sequence[str]) -> dict[str, frozenset[str]]:
    """For each op of both plans, the ops of both plans in its kernel."""
    members: dict[int, list[str]] = {}
    for op in shared:
        members.setdefault(ops[op].kernel, []).append(op)
    return {op: frozenset(kernel) for kernel in members.values() for op in kernel}


def _relays(plan: Plan | None) -> set[tuple[str, int]]:
    return {(relay.tensor, chip) for relay in plan.relays for chip in relay.chips} if plan else set()
