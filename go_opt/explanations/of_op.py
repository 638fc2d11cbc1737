"""Explains the placement of an op: its cost, its neighbours, and the cost of every other chip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from go_opt.common.suggestion import suggestion
from go_opt.env import Target
from go_opt.env.critical_path import KernelSlack, critical_path
from go_opt.errors import InvalidInputError
from go_opt.explanations.moves import Cost, Move, Mover, plan_cost
from go_opt.explanations.terms import KernelPart, Loads, Place, Terms, terms_of
from go_opt.model.codecs.fields import shown
from go_opt.model.dtypes import DTYPES
from go_opt.model.graph import NO_PRODUCER, OP_CLASSES, TENSOR_KINDS, Graph
from go_opt.model.plan import Plan
from go_opt.result import Objective
from go_opt.solver import Violation
from go_opt.solver.problem.user_constraints import UserConstraint
from go_opt.solver.verify.verifier import rules_broken


@dataclass(frozen=True)
class Read:
    """A tensor that an op reads, and its origin."""

    tensor: str
    kind: str  # "activation", "input", "weight", "streamed weight"
    size_bytes: int  # bytes that the op touches
    source: Place | None  # the op that computes it; None: it comes from the host
    relayed_on: tuple[int, ...]  # first chips of the stages that relay it
    is_in_kernel: bool  # the same kernel computes it, so this read costs no traffic


@dataclass(frozen=True)
class Written:
    """A tensor that an op writes, and its readers."""

    tensor: str
    size_bytes: int
    readers: tuple[Place, ...]
    is_output: bool  # it is sent to the host


@dataclass(frozen=True)
class OpExplanation:
    """The explanation of one op."""

    violations: tuple[Violation, ...]  # rules that the plan breaks; if any, there are no moves
    op: str
    op_type: str
    op_class: str
    dtype: str
    flops: float
    chip: int  # first chip of its stage
    replicas: int  # number of chips of its stage, which run the inferences in turn
    own_share: float  # of all inferences, that run on the first of them
    provenance: str  # origin of its placement
    kernel: KernelPart
    place_on_chip: int  # position of its kernel among those of the chip, from 1
    kernels_on_chip: int
    chip_busy_s: float  # busy time of one chip of the stage per inference that it runs
    cost: Cost  # of the unchanged plan; like those of moves without waits for streamed weights
    waits: bool  # whether the plan's interval is longer, since chips wait for streamed weights
    relays: int  # number of relay copies in the plan
    reads: tuple[Read, ...]  # largest first
    writes: tuple[Written, ...]
    free_chips: tuple[int, ...]  # first chips of stages where it can run if all other kernels stay
    moves: tuple[Move, ...]  # one for every other stage
    alone: KernelSlack | None = None  # its kernel in a single inference, if the objective is latency


def explain_op(
    graph: Graph,
    target: Target,
    plan: Plan,
    op: str,
    *,
    objective: Objective = "throughput",
    constraints: Sequence[UserConstraint] = (),
) -> OpExplanation:
    """Explain the placement of ``op``, and the cost of moving it to any other chip or replicated stage.

    Args:
      objective: ``latency`` adds the start and slack of its kernel in a single inference.
      constraints: the user's constraints, which moves must satisfy.

    Raises:
      PlanError: the plan was made for another graph or target, or its arrays do not fit them.
      InvalidInputError: there is no such op; the message suggests similar names.
    """
    violations = tuple(rules_broken(graph, target, plan, constraints))
    i = graph.op_index.get(op)
    if i is None:
        raise InvalidInputError(_unknown(graph, op), field="op")
    terms = terms_of(graph, target, plan)
    loads, metrics = terms.loads, terms.metrics
    kernel = int(loads.kernel_of[loads.graph.op_index[op]])
    chip = int(plan.placement[i])
    on_chip = np.flatnonzero(loads.kernel_chip == chip)
    moves: tuple[Move, ...] = ()
    if not violations:
        mover = Mover(graph, target, plan, constraints)
        own = int(mover.stages.number(plan.placement)[i])
        moves = tuple(mover.move(i, other) for other in range(len(mover.stages.size)) if other != own)
    may_run = [chip, *(move.chip for move in moves if not move.ops_along and not move.forbidden)]
    return OpExplanation(
        violations=violations,
        op=op,
        op_type=graph.op_types[i],
        op_class=OP_CLASSES[graph.op_class[i]],
        dtype=DTYPES[graph.op_dtype[i]],
        flops=float(graph.op_flops[i]),
        chip=chip,
        replicas=terms.replicas(chip),
        own_share=float(loads.share[chip]),
        provenance=plan.provenance[plan.op_provenance[i]],
        kernel=terms.kernel(kernel),
        place_on_chip=int(np.searchsorted(on_chip, kernel)) + 1,
        kernels_on_chip=len(on_chip),
        chip_busy_s=float(metrics.compute_s[chip] / loads.share[chip]),
        cost=plan_cost(graph, target, plan)[0],
        waits=bool(metrics.waits),
        relays=sum(len(relay.chips) for relay in plan.relays),
        reads=_reads(loads, terms, op, chip),
        writes=_writes(loads, terms, op),
        free_chips=tuple(sorted(may_run)),
        moves=moves,
        alone=None if objective == "throughput" or violations else _alone(graph, target, plan, op),
    )


def _alone(graph: Graph, target: Target, plan: Plan, op: str) -> KernelSlack:
    kernels = critical_path(graph, target, plan).kernels
    return next(kernel for kernel in kernels if op in kernel.ops)


def _reads(loads: Loads, terms: Terms, op: str, chip: int) -> tuple[Read, ...]:
    graph, tables = loads.graph, loads.tables
    i = graph.op_index[op]
    read_ptr, reads = graph.op_reads
    streamed = {part.tensor for part in terms.streamed(chip)} if terms.metrics.stream_bytes[chip] else set()
    found = []
    for r in reads[read_ptr[i] : read_ptr[i + 1]].tolist():
        k = int(graph.reader_tensor[r])
        name = terms.tensor_name(k)
        kind = TENSOR_KINDS[graph.tensor_kind[k]]
        producer = int(graph.tensor_producer[k])
        made = producer != NO_PRODUCER
        found.append(
            Read(
                tensor=name,
                kind="streamed weight" if name in streamed else kind,
                size_bytes=int(tables.read_bytes[r]),
                source=terms.source(k) if made else None,
                relayed_on=terms.copied_on(k) if made else (),
                is_in_kernel=made and bool(loads.kernel_of[producer] == loads.kernel_of[i]),
            )
        )
    return tuple(sorted(found, key=lambda read: (-read.size_bytes, read.tensor)))


def _writes(loads: Loads, terms: Terms, op: str) -> tuple[Written, ...]:
    graph = loads.graph
    i = graph.op_index[op]
    out_ptr, outputs = graph.op_outputs
    found = []
    for k in outputs[out_ptr[i] : out_ptr[i + 1]].tolist():
        readers = tuple(place for reader in loads.readers(k) for place in terms.final_readers(reader))
        found.append(
            Written(
                tensor=graph.tensor_names[k],
                size_bytes=int(loads.tables.tensor_bytes[k]),
                readers=tuple(sorted(readers, key=lambda place: place.chip)),
                is_output=bool(graph.tensor_is_output[k]),
            )
        )
    return tuple(found)


def _unknown(graph: Graph, op: str) -> str:
    return f"the graph has no op {shown(op)}{suggestion(op, graph.op_names)}"
