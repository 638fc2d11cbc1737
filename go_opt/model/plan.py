"""The plan, which is go-opt's result: placement, order, fusion, and the origin of each choice."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import IntArray, frozen
from go_opt.errors import PlanError
from go_opt.model.bindings import NO_BINDINGS, Bindings
from go_opt.model.graph import Graph, Precision, Rewrite


@dataclass(frozen=True)
class Relay:
    """A copy of ``tensor`` forwarded through ``chips`` on its way to a far reader."""

    tensor: str
    chips: tuple[int, ...]


class CollectiveOp(StrEnum):
    """Types of the ops of collectives."""

    SEND = "CollectiveSend"  # hands over
    ALL_GATHER = "AllGather"
    ALL_REDUCE = "AllReduce"
    ALL_TO_ALL = "AllToAll"
    REDUCE_SCATTER = "ReduceScatter"

    @property
    def figures(self) -> str:
        """The name of the collective in targets."""
        return self.name.lower()

    @classmethod
    def of(cls, op_type: str) -> CollectiveOp | None:
        """The collective that an op of a chip takes part in, by its type; None if it is no such op."""
        return next((one for one in cls if one.value == op_type and one is not cls.SEND), None)


@dataclass(frozen=True)
class Split:
    """An op that is computed in ``parts`` along a factor of its rule; each part is an op of its own.

    An op may have several splits, along different factors: its parts are all combinations. Without a factor,
    each part is a copy that computes all of the op, from the copies of what it reads; it has no other splits.
    """

    op: str
    factor: str  # its name in the rule; empty: copies
    parts: int
    # False: readers that are divided alike go on with the parts, which end where theirs do; the host reads
    # the parts of an output of the model.
    joined: bool = True
    # True: the chips of the parts exchange results in a collective, after which each has what its parts of
    # readers need that do not go on with the parts. False: one op joins or adds the results.
    collective: bool = False
    bucket: int = 0  # above 0: collectives with the same number are one, as gradients of a bucket
    # 1: of an op of the graph in which those of level 0 are in parts already, as replicas of divided layers.
    level: int = 0


class NamedTarget(Protocol):
    """What a plan records of its target."""

    @property
    def source(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...


@dataclass(frozen=True, eq=False)
class Plan:
    """Where each op runs, in which order, and which ops form one kernel.

    The ops are those of the model's graph, with the plan's rewrites. If the plan splits ops, they are those
    of the graph with the parts (:func:`go_opt.env.copies.planned_graph`), and the plan carries that graph's
    fingerprint; else that of the graph as sent.

    Build one with :meth:`create`. A plan belongs to one graph and one target and carries
    their fingerprints; :meth:`check_belongs_to` raises if it is used with others.
    """

    placement: IntArray  # [N] first chip of each op's stage
    order: IntArray  # [N] ops in execution order, a topological order
    fusion_group: IntArray  # [N] kernel of each op, numbered by first position in `order`
    replication: IntArray  # [N] number of consecutive chips of the op's stage
    relays: tuple[Relay, ...]
    provenance: tuple[str, ...]  # distinct origins ("slice: depth order", "pinned", …)
    op_provenance: IntArray  # [N] index into `provenance`
    graph_fingerprint: str
    target_fingerprint: str
    target: str  # name or path that the target was loaded from
    bindings: Bindings = NO_BINDINGS  # with which the model was loaded
    precision: Precision = "native"
    model: str = ""  # path or zoo:NAME that the graph was loaded from; empty if it has neither
    splits: tuple[Split, ...] = ()  # ops of the model's graph that are computed in parts
    forwards: tuple[int, ...] = ()  # first chips of stages whose chips forward streamed weights
    sequences: int = 1  # in flight, each with its own states
    host_states: tuple[str, ...] = ()  # states, by what is read, that the host keeps from step to step
    rewrites: tuple[Rewrite, ...] = ()  # applied in this order, before splits

    def __repr__(self) -> str:
        kernels = int(self.fusion_group.max(initial=-1)) + 1
        return (
            f"Plan({len(self.placement)} ops of graph {self.graph_fingerprint[:8]}, {kernels} kernels "
            f"on {self.chips_used} chips of {self.target!r})"
        )

    @staticmethod
    def create(
        graph: Graph,
        target_name: str,
        target_fingerprint: str,
        *,
        placement: NDArray,
        order: NDArray,
        fusion_group: NDArray,
        provenance: str,
        replication: NDArray | None = None,
        forwards: tuple[int, ...] = (),
    ) -> Plan:
        """A plan with a single origin and without relays; replication is 1 by default."""
        num_ops = graph.num_ops
        return Plan(
            placement=frozen(placement, np.int32),
            order=frozen(order, np.int32),
            fusion_group=frozen(number_by_first_place(fusion_group, order), np.int32),
            replication=frozen(np.ones(num_ops) if replication is None else replication, np.int32),
            relays=(),
            provenance=(provenance,),
            op_provenance=frozen(np.zeros(num_ops), np.int32),
            graph_fingerprint=graph.fingerprint,
            target_fingerprint=target_fingerprint,
            target=target_name,
            bindings=graph.bindings,
            precision=graph.precision,
            forwards=forwards,
            sequences=graph.sequences,
            host_states=tuple(state.read for state in graph.host_states),
            rewrites=graph.rewrites,
        )

    @property
    def chips_used(self) -> int:
        """Number of chips that run an op."""
        _, op = np.unique(self.placement, return_index=True)
        return int(self.replication[op].sum())

    def check_belongs_to(self, graph: Graph, target_fingerprint: str) -> None:
        """Raise :class:`PlanError` if the plan was made for another graph or target."""
        if self.graph_fingerprint != graph.fingerprint:
            raise PlanError(
                f"the plan is of another graph (plan {self.graph_fingerprint[:12]}, "
                f"graph {graph.name!r} {graph.fingerprint[:12]}); a plan made with measured costs "
                "is judged with the same costs.",
                field="graph_fingerprint",
            )
        if self.target_fingerprint != target_fingerprint:
            raise PlanError(
                f"the plan is for another target (plan: {self.target!r} "
                f"{self.target_fingerprint[:12]}, given: {target_fingerprint[:12]}).",
                field="target_fingerprint",
            )


@dataclass(frozen=True, eq=False)
class Candidate:
    """A plan that a method has found, of the graph and target at hand; it may be invalid, or have no gain."""

    method: str
    placement: IntArray  # [N] first chip of each op's stage; [0] where only order and kernels are given
    order: IntArray  # [N] ops in execution order
    fusion_group: IntArray  # [N] kernel of each op
    replication: IntArray | None = None  # [N] chips of each op's stage; None: one each
    forwards: tuple[int, ...] = ()  # first chips of the stages that forward streamed weights
    expected_s: float = math.inf  # the objective by the method's own reckoning; infinite: it does not fit

    def plan(self, graph: Graph, target: NamedTarget) -> Plan:
        """The plan, without relays."""
        return Plan.create(
            graph,
            target.source,
            target.fingerprint,
            placement=self.placement,
            order=self.order,
            fusion_group=self.fusion_group,
            provenance=self.method,
            replication=self.replication,
            forwards=self.forwards,
        )


def number_by_first_place(group: NDArray, order: NDArray | slice = slice(None)) -> IntArray:
    """Renumber groups 0, 1, … by their first op in ``order``, so that equal fusions compare equal."""
    _, first, inverse = np.unique(group[order], return_index=True, return_inverse=True)
    numbered = np.empty(len(group), dtype=np.int32)
    numbered[order] = np.argsort(np.argsort(first))[inverse]
    return numbered
