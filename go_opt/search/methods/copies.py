"""Proposals for chips without an order: one plan on every chip of a kind, each for inferences in turn.

Copies share nothing but the host, so an order and its kernels cost each chip what they cost one chip
alone, over the number of copies. Where all fits one chip of the only kind no pipeline beats that:
no more than all chips can be busy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.env import list_schedule
from go_opt.env.kernels.fusion import LoopRoles
from go_opt.env.kernels.numbering import kernel_seconds, number_kernels
from go_opt.env.kernels.priority_fusion import priority_fusion
from go_opt.search.methods.events import Proposal, SearchView, copies_are_open
from go_opt.solver.constraints.fusion import constrained_fusion
from go_opt.solver.problem.replica_allocation import allocated_chips

COPIED: Final = ", copied"
_JOINED: Final = 2.0  # a priority by which an op joins whatever kernel it may


def copies(search: SearchView, method: str, order: IntArray, group: IntArray) -> Iterator[Proposal]:
    """Everything on each chip of a kind; of as many as are of use, where the host sets the pace."""
    if not copies_are_open(search.target, search.request) or search.requested.num_stages not in (None, 1):
        return
    kernel_of = number_kernels(order, group)
    tables = search.tables  # under constraints each chip is of a kind of its own
    work_s = kernel_seconds(tables, kernel_of).sum(axis=1)  # [Q]
    for kind in range(len(search.target.kinds)):
        chips = np.flatnonzero(search.target.chip_kind == kind)
        if not tables.can_run[tables.chip_kind[chips]].all():
            continue
        of_chip = int(tables.chip_kind[chips[0]])
        first, size = np.full(len(order), chips[0], dtype=np.int32), len(chips)
        if search.graph.has_scope("sequence"):  # which stays on its chip
            size = min(size, search.graph.sequences)
            if size == 1:  # that one method has already
                continue
        name = method + COPIED
        yield Proposal(name, first, order, group, replication=np.full_like(first, size))
        enough = int(allocated_chips(work_s[of_chip : of_chip + 1], size, search.last_interval_s)[0])
        if enough < size:
            yield Proposal(name, first, order, group, replication=np.full_like(first, enough))


def joined_kernels(search: SearchView, roles: LoopRoles, group: IntArray) -> tuple[IntArray, IntArray]:
    """``(order, kernels)``, [N] each: the kernels ``group`` joined wherever they may be.

    That saves overheads and traffic and costs nothing on one chip, but for memory. It may take ops away
    from the place where a slicing would cut, and so is of use where nothing has to be cut.
    """
    graph = search.graph
    joined = priority_fusion(graph, roles, group, np.full(graph.num_ops, _JOINED))
    order = list_schedule(graph, joined, -np.arange(int(joined.max()) + 1, dtype=np.float64))
    return order, constrained_fusion(search.requested, order, joined)
