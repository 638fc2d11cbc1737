"""Constraints drawn at random, and what they mean, op by op."""

from __future__ import annotations

import numpy as np

from go_opt.env import Target, cost_tables
from go_opt.env.kernels.numbering import kernel_seconds
from go_opt.model.graph import WEIGHT, Graph
from go_opt.solver.problem.user_constraints import (
    ChipLimit,
    Colocate,
    CutAfter,
    Forbid,
    Pin,
    Stages,
    UserConstraint,
)


def draw_constraint(rng: np.random.Generator, graph: Graph, target: Target) -> UserConstraint:
    op = f"op{rng.integers(graph.num_ops)}"
    other = f"op{rng.integers(graph.num_ops)}"
    chip = int(rng.integers(target.num_chips))
    total_s = kernel_seconds(cost_tables(graph, target), np.arange(graph.num_ops, dtype=np.int32)).sum()
    op_type = graph.op_types[int(rng.integers(graph.num_ops))]
    choices = [
        Pin(chip=chip, op_types=op_type),
        Forbid(op, (chip,), op_types=f"{op_type[0]}.*"),
        Colocate(op_types=[op_type]),
        ChipLimit(chip, at_most_ops=int(rng.integers(0, graph.num_ops))),
        ChipLimit(chip, at_most_kernels=int(rng.integers(0, graph.num_ops))),
        Stages(chip + 1),
        Pin(op, chip),
        Forbid((op, other), (chip,)),
        Colocate((op, other)),
        ChipLimit(chip, at_most_bytes=int(rng.integers(0, 20000))),
        ChipLimit(chip, at_least_bytes=int(rng.integers(0, 10000))),
        ChipLimit(chip, at_most_s=float(rng.random() * total_s)),
        ChipLimit(chip, at_least_s=float(rng.random() * total_s / 2)),
    ]
    if target.goes_forward:
        choices.append(CutAfter((op, other)))
    return choices[int(rng.integers(len(choices)))]


def obeys(graph: Graph, target: Target, placement: np.ndarray, constraint: UserConstraint) -> bool:
    """Whether a placement, with a kernel for each op, keeps the constraint."""
    if isinstance(constraint, ChipLimit):
        return _obeys_limit(graph, target, placement, constraint)
    if isinstance(constraint, Stages):
        return len(set(placement.tolist())) == constraint.count
    starts = tuple(name.removesuffix(".*") for name in constraint.op_types)
    of_type = [name for name, of in zip(graph.op_names, graph.op_types, strict=True) if of.startswith(starts)]
    names = [*constraint.ops, *(of_type if starts else ())]
    chips = {int(placement[graph.op_index[name]]) for name in names}
    if isinstance(constraint, CutAfter):
        inside = {graph.op_index[name] for name in names}
        edges = zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True)
        return all(placement[v] > placement[u] for u, v in edges if u in inside and v not in inside)
    if isinstance(constraint, Pin):
        return chips == {constraint.chip}
    if isinstance(constraint, Forbid):
        return not chips & set(constraint.chips)
    return len(chips) == 1


def _obeys_limit(graph: Graph, target: Target, placement: np.ndarray, limit: ChipLimit) -> bool:
    tables = cost_tables(graph, target)
    kernels = kernel_seconds(tables, np.arange(graph.num_ops, dtype=np.int32))
    held_s = kernels[tables.chip_kind[limit.chip]][placement == limit.chip].sum()
    held_bytes = sum(
        tables.tensor_bytes[k]
        for k in np.flatnonzero(tables.tensor_kind == WEIGHT)
        if (placement[tables.reader_op[tables.reader_ptr[k] : tables.reader_ptr[k + 1]]] == limit.chip).any()
    )
    return (
        (limit.at_most_bytes is None or held_bytes <= limit.at_most_bytes)
        and (limit.at_least_bytes is None or held_bytes >= limit.at_least_bytes)
        and all(
            most is None or (placement == limit.chip).sum() <= most
            for most in (limit.at_most_ops, limit.at_most_kernels)
        )
        and (limit.at_most_s is None or held_s <= limit.at_most_s * (1 + 1e-9))
        and (limit.at_least_s is None or held_s >= limit.at_least_s * (1 - 1e-9))
    )
