"""Why an op is where it is: what it costs, whom it is tied to, and every other chip in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from go_opt.common.suggestion import suggestion
from go_opt.env import Target, cost_tables, evaluate_plan
from go_opt.env.copies.relays import expand_plan
from go_opt.env.critical_path import KernelSlack, critical_path
from go_opt.errors import InvalidInputError
from go_opt.explanations.loads import Loads
from go_opt.explanations.moves import Cost, Move, Mover, plan_cost
from go_opt.explanations.terms import KernelPart, Place, Terms, original_names
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
    """A tensor an op reads, and from where."""

    tensor: str
    kind: str  # "activation", "input", "weight", "streamed weight"
    size_bytes: int  # that the op touches
    source: Place | None  # the op that computes it, or its clone; None: it is the host's
    relayed_on: tuple[int, ...]  # chips that copy it on the way, the first of each stage
    is_in_kernel: bool  # it never leaves the kernel, and costs no traffic


@dataclass(frozen=True)
class Written:
    """A tensor an op writes, and who reads it."""

    tensor: str
    size_bytes: int
    readers: tuple[Place, ...]
    is_output: bool  # it goes to the host


@dataclass(frozen=True)
class OpExplanation:
    """Everything that is told of one op."""

    violations: tuple[Violation, ...]  # rules the plan breaks; moves are told of legal plans only
    op: str
    op_type: str
    op_class: str
    dtype: str
    flops: float
    chip: int  # the first of its stage
    replicas: int  # chips of its stage, which take turns at the inferences
    clones: tuple[int, ...]  # chips that compute it once more, the first of each stage
    provenance: str  # what placed it
    kernel: KernelPart
    place_on_chip: int  # of its kernel among those of the chip, from 1
    kernels_on_chip: int
    chip_busy_s: float  # with an inference, each chip of the stage with one of its own
    cost: Cost  # of the plan as it is
    relays: int  # copies on chips that the plan has
    reads: tuple[Read, ...]  # most bytes first
    writes: tuple[Written, ...]
    free_chips: tuple[int, ...]  # that it can run on while all other kernels stay, the first of each stage
    moves: tuple[Move, ...]  # one for every other stage
    alone: KernelSlack | None = None  # its kernel in one inference alone, where the makespan is the objective


def explain_op(
    graph: Graph,
    target: Target,
    plan: Plan,
    op: str,
    *,
    objective: Objective = "throughput",
    constraints: Sequence[UserConstraint] = (),
) -> OpExplanation:
    """Explain where ``op`` is, and what any other chip, or replicated stage, would cost.

    Args:
      objective: ``latency`` adds when its kernel runs in one inference alone, and its slack.
      constraints: of the user, which moves must keep.

    Raises:
      PlanError: the plan was made for another graph or target, or is no plan for them at all.
      InvalidInputError: there is no such op; the message has the nearest names.
    """
    violations = tuple(rules_broken(graph, target, plan, constraints))
    i = graph.op_index.get(op)
    if i is None:
        raise InvalidInputError(_unknown(graph, op), field="op")
    expanded, placed = expand_plan(graph, target, plan)
    loads = Loads(expanded, cost_tables(expanded, target), placed)
    metrics = evaluate_plan(graph, target, plan)
    terms = Terms(target, loads, metrics, original_names(graph, plan))
    kernel = int(loads.kernel_of[expanded.op_index[op]])
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
        clones=tuple(sorted(clone.chip for clone in plan.clones if clone.op == op)),
        provenance=plan.provenance[plan.op_provenance[i]],
        kernel=terms.kernel(kernel),
        place_on_chip=int(np.searchsorted(on_chip, kernel)) + 1,
        kernels_on_chip=len(on_chip),
        chip_busy_s=float(metrics.compute_s[chip]) * terms.replicas(chip),
        cost=plan_cost(graph, target, plan)[0],
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
