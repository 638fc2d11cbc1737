"""Defines relays and clones: expands a graph and plan into ones with relays and clones as ops.

A *relay* of a tensor on a chip is a ``data_movement`` kernel of its own that reads and
writes the tensor once; its output shares the double buffer of its input. A *clone*
of an op computes it again on another chip, as a kernel of its own (design section 8).

An op or clone on chip c reads a tensor from the clone of its producer on c. If there is
none, it reads from the last relay before c, or else from the producer. Relays read likewise,
but not from clones. Graph outputs leave only from originals. This is the definition, in
plain NumPy; :mod:`go_opt.env.copies.expanded_tables` is its fast twin on cost tables.

Axes: ``N`` ops, ``K`` tensors, ``P`` relays, ``C`` clones.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import IntArray, LongArray
from go_opt.env.copies.stages import size_by_chip
from go_opt.env.cost.tables import COPY_TYPE
from go_opt.env.target import Target
from go_opt.errors import PlanError
from go_opt.model.csr import row_pointers
from go_opt.model.graph import DATA_MOVEMENT, NO_PRODUCER, Graph
from go_opt.model.plan import Plan

_NONE: Final = -1


class Copies(NamedTuple):
    """Relays and clones of a plan, each pair once. Axes: ``P`` relays, ``C`` clones."""

    relay_tensor: IntArray  # [P] ascending
    relay_chip: IntArray  # [P] ascending for each tensor
    clone_op: IntArray  # [C] ascending
    clone_chip: IntArray  # [C] ascending for each op


def relay_name(tensor: str, chip: int) -> str:
    """The name of the relay of ``tensor`` on ``chip``, and of its output."""
    return f"{tensor}/relay {chip}"


def clone_name(name: str, chip: int) -> str:
    """The name of the clone of the op ``name`` on ``chip``, or of its copy of the tensor ``name``."""
    return f"{name}/clone {chip}"


def copies_of(graph: Graph, plan: Plan) -> Copies:
    """The relays and clones of ``plan`` as arrays.

    Raises:
      PlanError: a relay's tensor or clone's op is not in the graph, or no op produces the tensor.
    """
    relays = {(_relayed_tensor(graph, r.tensor), chip) for r in plan.relays for chip in r.chips}
    clones = {(_cloned_op(graph, clone.op), clone.chip) for clone in plan.clones}
    return Copies(*_columns(relays), *_columns(clones))


def expand_plan(graph: Graph, target: Target, plan: Plan) -> tuple[Graph, Plan]:
    """The graph with an op for every relay and every clone, and its plan.

    Relays follow the kernel that produces their tensor; a clone comes just before the first
    kernel on its chip that reads it. A plan without relays and clones is returned unchanged.

    Raises:
      PlanError: a relay's tensor or clone's op is not in the graph, or no op produces the tensor.
    """
    return _expanded(graph, target, plan) if plan.relays or plan.clones else (graph, plan)


@lru_cache(maxsize=8)
def _expanded(graph: Graph, target: Target, plan: Plan) -> tuple[Graph, Plan]:
    numbered = _Numbered(graph, plan)
    copies, stored = numbered.copies, numbered.storage_order()
    index = np.empty(len(stored), np.int32)
    index[stored] = np.arange(len(stored))
    expanded = numbered.graph_of(stored, index)
    alone = int(plan.fusion_group.max()) + 1 + np.arange(len(stored) - graph.num_ops)
    placement = np.concatenate([plan.placement, copies.relay_chip, copies.clone_chip])
    size = size_by_chip(plan.placement, plan.replication, target.num_chips)
    return expanded, Plan.create(
        expanded,
        target.source,
        target.fingerprint,
        placement=placement[stored],
        order=index[numbered.order()],
        fusion_group=np.concatenate([plan.fusion_group, alone])[stored],
        replication=size[placement[stored]],
        provenance="relays and clones as ops",
        forwards=plan.forwards,
    )


class _Numbered:
    """Ops and tensors by number: those of the graph, then one for each relay, then those of clones."""

    def __init__(self, graph: Graph, plan: Plan) -> None:
        self.graph, self.plan, self.copies = graph, plan, copies_of(graph, plan)
        self.producer = graph.tensor_producer[self.copies.relay_tensor]  # [P]
        self.first_clone = graph.num_ops + len(self.copies.relay_chip)
        # What clones write: the clone and the original of each tensor.
        out_ptr, outputs = graph.op_outputs
        self.cloned_by, places = _rows(out_ptr, self.copies.clone_op)
        self.cloned = outputs[places]
        self.rank = np.zeros(graph.num_tensors, np.int64)  # [K] place among what the producer writes
        op, places = _rows(out_ptr, np.arange(graph.num_ops))
        self.rank[outputs] = places - out_ptr[op]

    def source(self, tensor: NDArray, chip: NDArray) -> LongArray:
        """The tensor that ops and clones on ``chip`` read in place of ``tensor``."""
        first_tensor = self.graph.num_tensors + len(self.producer)
        first_written = row_pointers(self.cloned_by, len(self.copies.clone_op)) + first_tensor
        clone = self.clone_of(self.graph.tensor_producer[tensor], chip)
        return np.where(clone != _NONE, first_written[clone] + self.rank[tensor], self.relayed(tensor, chip))

    def relayed(self, tensor: NDArray, chip: NDArray) -> LongArray:
        """The last relay of ``tensor`` before ``chip``, or the tensor itself."""
        wide = self._wide
        relays = self.copies.relay_tensor * wide + self.copies.relay_chip
        last = np.searchsorted(relays, tensor * wide + chip) - 1
        is_of_tensor = np.append(self.copies.relay_tensor, _NONE)[last] == tensor
        return np.where(is_of_tensor, self.graph.num_tensors + last, tensor)

    def clone_of(self, op: NDArray, chip: NDArray) -> LongArray:
        """The clone of ``op`` on ``chip``, or none."""
        clones = self.copies.clone_op * self._wide + self.copies.clone_chip
        at = np.searchsorted(clones, op * self._wide + chip)
        is_there = (op >= 0) & (np.append(clones, _NONE)[at] == op * self._wide + chip)
        return np.where(is_there, at, _NONE)

    @property
    def _wide(self) -> np.int64:
        """A number above that of any chip."""
        chips = (self.plan.placement, self.copies.relay_chip, self.copies.clone_chip)
        return np.int64(1 + max(int(of.max(initial=0)) for of in chips))

    def reads(self) -> tuple[NDArray, NDArray, NDArray]:
        """``(tensor, op, elements touched)`` of every read."""
        graph, copies = self.graph, self.copies
        tensor, reader, elements = graph.reader_tensor, graph.reader_op, graph.reader_elements
        read_ptr, reads = graph.op_reads
        clone, places = _rows(read_ptr, copies.clone_op)
        of_clone = reads[places]
        copied = copies.relay_tensor
        source = (
            self.source(tensor, self.plan.placement[reader]),
            self.relayed(copied, copies.relay_chip),
            self.source(tensor[of_clone], copies.clone_chip[clone]),
        )
        relays = graph.num_ops + np.arange(len(copied))
        return (
            np.concatenate(source),
            np.concatenate([reader, relays, self.first_clone + clone]),
            np.concatenate([elements, graph.tensor_elements[copied], elements[of_clone]]),
        )

    def storage_order(self) -> LongArray:
        """Op numbers: each op, then its clones, then the relays of its outputs; a topological order."""
        num_ops, clone_op = self.graph.num_ops, self.copies.clone_op
        behind = np.concatenate([np.arange(num_ops), self.producer, clone_op])
        rank = np.repeat([0, 2, 1], [num_ops, len(self.producer), len(clone_op)])
        return np.lexsort((rank, behind))

    def order(self) -> LongArray:
        """Op numbers in the order of execution."""
        order, clone_op = self.plan.order, self.copies.clone_op
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        kernel = self._kernels()
        before = np.concatenate([kernel, kernel[self.producer], self._first_readers(kernel, place)])
        rank = np.repeat([1, 2, 0], [len(order), len(self.producer), len(clone_op)])
        along = np.concatenate([place, place[self.producer], place[clone_op]])
        return np.lexsort((along, rank, before))

    def _kernels(self) -> LongArray:
        """[N] kernel of each op: runs of one group along the order."""
        group = self.plan.fusion_group[self.plan.order]
        kernel = np.empty(len(group), np.int64)
        kernel[self.plan.order] = np.cumsum(np.concatenate([[0], group[1:] != group[:-1]]))
        return kernel

    def _first_readers(self, kernel: LongArray, place: LongArray) -> LongArray:
        """[C] the kernel that each clone comes before; if nothing reads it, the one after its original's."""
        graph, (_, _, clone_op, clone_chip) = self.graph, self.copies
        producer = graph.tensor_producer[graph.reader_tensor]
        read = self.clone_of(producer, self.plan.placement[graph.reader_op])
        before = np.full(len(clone_op), len(kernel) + 1)
        np.minimum.at(before, read[read != _NONE], kernel[graph.reader_op[read != _NONE]])
        read_ptr, reads = graph.op_reads
        for clone in np.argsort(-place[clone_op], kind="stable").tolist():
            op = clone_op[clone]
            if before[clone] > len(kernel):
                before[clone] = kernel[op] + 1
            above = self.clone_of(producer[reads[read_ptr[op] : read_ptr[op + 1]]], clone_chip[clone])
            above = above[above != _NONE]
            before[above] = np.minimum(before[above], before[clone])
        return before

    def graph_of(self, stored: LongArray, index: IntArray) -> Graph:
        """The graph with ops in the order ``stored``; ``index`` is the place of each op in it."""
        graph, copies = self.graph, self.copies
        relay_tensor, clone_op = copies.relay_tensor, copies.clone_op
        relays = len(relay_tensor)
        tensor_of = np.concatenate([np.arange(graph.num_tensors), relay_tensor, self.cloned])
        made = np.concatenate([np.arange(relays) + graph.num_ops, self.first_clone + self.cloned_by])
        has_producer = graph.tensor_producer != NO_PRODUCER
        producer = np.where(has_producer, index[graph.tensor_producer], NO_PRODUCER)
        tensor, reader, elements = self.reads()
        by_tensor = np.lexsort((index[reader], tensor))
        copied = self._copy_names()
        op_names = [*graph.op_names, *copied, *self._clone_names(graph.op_names, clone_op, copies.clone_chip)]
        op_types = [*graph.op_types, *[COPY_TYPE] * relays, *(graph.op_types[op] for op in clone_op)]
        written = self._clone_names(graph.tensor_names, self.cloned, copies.clone_chip[self.cloned_by])

        def per_op(of_ops: NDArray, of_relays: NDArray) -> NDArray:
            return _frozen(np.concatenate([of_ops, of_relays, of_ops[clone_op]])[stored], of_ops)

        def per_kind(by_kind: Mapping[str, NDArray], of_relays: float | bool) -> dict[str, NDArray]:
            return {kind: per_op(values, np.full(relays, of_relays)) for kind, values in by_kind.items()}

        return Graph(
            name=graph.name,
            op_names=tuple(op_names[op] for op in stored),
            op_types=tuple(op_types[op] for op in stored),
            op_class=per_op(graph.op_class, np.full(relays, DATA_MOVEMENT)),
            op_flops=per_op(graph.op_flops, np.zeros(relays)),
            op_dtype=per_op(graph.op_dtype, graph.tensor_dtype[relay_tensor]),
            tensor_names=(*graph.tensor_names, *copied, *written),
            tensor_elements=_frozen(graph.tensor_elements[tensor_of], graph.tensor_elements),
            tensor_dtype=_frozen(graph.tensor_dtype[tensor_of], graph.tensor_dtype),
            tensor_kind=_frozen(graph.tensor_kind[tensor_of], graph.tensor_kind),
            tensor_producer=_frozen(np.concatenate([producer, index[made]]), graph.tensor_producer),
            tensor_is_output=_frozen(
                graph.tensor_is_output[tensor_of] & (np.arange(len(tensor_of)) < graph.num_tensors),
                graph.tensor_is_output,
            ),
            reader_ptr=_frozen(row_pointers(tensor[by_tensor], len(tensor_of)), graph.reader_ptr),
            reader_op=_frozen(index[reader[by_tensor]], graph.reader_op),
            reader_elements=_frozen(elements[by_tensor], graph.reader_elements),
            measured_s=per_kind(graph.measured_s, np.nan),
            excluded=per_kind(graph.excluded, False),
            bindings=graph.bindings,
            precision=graph.precision,
        )

    def _copy_names(self) -> list[str]:
        pairs = zip(self.copies.relay_tensor, self.copies.relay_chip, strict=True)
        return [relay_name(self.graph.tensor_names[k], chip) for k, chip in pairs]

    @staticmethod
    def _clone_names(names: tuple[str, ...], which: NDArray, chips: NDArray) -> list[str]:
        return [clone_name(names[i], chip) for i, chip in zip(which, chips, strict=True)]


def _rows(pointers: LongArray, rows: NDArray) -> tuple[LongArray, LongArray]:
    """For each entry of the CSR rows ``rows``: the position of its row in ``rows``, and its own place."""
    counts = pointers[rows + 1] - pointers[rows]
    which = np.repeat(np.arange(len(rows)), counts)
    return which, np.arange(len(which)) - (np.cumsum(counts) - counts - pointers[rows])[which]


def _relayed_tensor(graph: Graph, name: str) -> int:
    tensor = graph.tensor_index.get(name)
    if tensor is None:
        raise PlanError(f"plan: relays: the graph has no tensor {name[:80]!r}.", field="relays")
    if graph.tensor_producer[tensor] == NO_PRODUCER:
        raise PlanError(
            f"plan: relays: no op produces tensor {name[:80]!r}; the host sends it to every reader.",
            field="relays",
        )
    return tensor


def _cloned_op(graph: Graph, name: str) -> int:
    op = graph.op_index.get(name)
    if op is None:
        raise PlanError(f"plan: clones: the graph has no op {name[:80]!r}.", field="clones")
    return op


def _columns(pairs: set[tuple[int, int]]) -> tuple[IntArray, IntArray]:
    rows = np.array(sorted(pairs), dtype=np.int32).reshape(-1, 2)
    return rows[:, 0].copy(), rows[:, 1].copy()


def _frozen(values: NDArray, like: NDArray) -> NDArray:
    array = values.astype(like.dtype)
    array.flags.writeable = False
    return array
