"""What the makespan of a plan is made of: a chain of kernels, transfers and waits; and the slack of kernels.

The execution is that of :mod:`go_opt.env.model.makespan`. Its chain goes back from what ends last: each
piece began when the piece before it ended. The slack of a kernel is how much later it may start
without a longer makespan, where chips, links and the host's link keep serving in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, NamedTuple

import numpy as np

from go_opt.env.copies.expanded_tables import PlanTables, copies_of, plan_tables
from go_opt.env.copies.relays import clone_name, relay_name
from go_opt.env.cost import CostTables
from go_opt.env.cost.routes import transfer_s
from go_opt.env.evaluation import execution_inputs
from go_opt.env.model.makespan import execution
from go_opt.env.target import Target
from go_opt.model.graph import NO_PRODUCER, Graph
from go_opt.model.plan import Plan

Kind = Literal["kernel", "transfer", "wait", "host in", "host out"]
_NONE: Final = -1


@dataclass(frozen=True)
class Piece:
    """A stretch of the makespan. Of a wait: the tensor that holds the link meanwhile."""

    kind: Kind
    resource: str  # "chip 3", "link 2->3" (of a transfer over several: "chips 2->5"), "host in", "host out"
    name: str  # first op of the kernel, or the tensor; of host in the op that waits for its inputs
    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True)
class KernelSlack:
    """When a kernel runs in one execution alone, and how much later it might."""

    ops: tuple[str, ...]
    chip: int
    start_s: float
    seconds: float
    slack_s: float


@dataclass(frozen=True)
class CriticalPath:
    """The pieces follow each other from 0 to the makespan without a gap."""

    makespan_s: float
    pieces: tuple[Piece, ...]
    kernels: tuple[KernelSlack, ...]  # along the plan's order

    @property
    def by_resource(self) -> tuple[tuple[str, float], ...]:
        """Seconds of the path on each chip and link, the most first: what binds the makespan."""
        seconds: dict[str, float] = {}
        for piece in self.pieces:
            seconds[piece.resource] = seconds.get(piece.resource, 0.0) + piece.seconds
        return tuple(sorted(seconds.items(), key=lambda item: -item[1]))

    @property
    def by_kind(self) -> tuple[tuple[Kind, int, float], ...]:
        """Number and seconds of the pieces of each kind, the most seconds first."""
        kinds = dict.fromkeys(piece.kind for piece in self.pieces)
        of = {kind: [piece.seconds for piece in self.pieces if piece.kind == kind] for kind in kinds}
        rows = [(kind, len(seconds), sum(seconds)) for kind, seconds in of.items()]
        return tuple(sorted(rows, key=lambda row: -row[2]))


def critical_path(graph: Graph, target: Target, plan: Plan) -> CriticalPath:
    """The critical path of ``plan``, which must run on ``target`` (:func:`go_opt.verify`)."""
    placed = plan_tables(graph, target, plan)
    ran = _Run(graph, target, plan, placed)
    columns = zip(ran.ops, ran.chip, ran.start_s, ran.kernel_s, ran.slack_s(), strict=True)
    kernels = tuple(KernelSlack(tuple(ran.op_names[op] for op in ops), *row) for ops, *row in columns)
    return CriticalPath(ran.makespan_s, tuple(reversed([*ran.pieces()])), kernels)


class _Cause(NamedTuple):
    """What something waited for: the end of a kernel, a tensor that left, the host's link, or the start."""

    time_s: float
    kind: Literal["end", "sent", "link", "host in", "to host", "start"]
    number: int = _NONE
    link: int = _NONE


class _Run:
    """One execution as plain lists. ``M`` kernels along the plan's order, ``K`` tensors."""

    def __init__(self, graph: Graph, target: Target, plan: Plan, placed: PlanTables) -> None:
        self.target, self.tables = target, placed.tables
        tables, order, kernel_of, kernel_chip, kernel_s = execution_inputs(placed)
        ran = execution(tables, order, kernel_of, kernel_chip, kernel_s, placed.evaluate().stream_bytes[0])
        self.makespan_s, self.start_s = ran.makespan_s, ran.start_s.tolist()
        self.sent_s, self.to_host_s = ran.sent_s.tolist(), ran.to_host_s.tolist()
        self.chip, self.kernel_s = kernel_chip.tolist(), kernel_s.tolist()
        self.by_end = np.argsort(ran.rank).tolist()
        self.kernel_of = kernel_of.tolist()
        self.size = tables.tensor_bytes.tolist()
        self.is_output = tables.tensor_is_output.tolist()
        self.rate = [*tables.link_s_per_byte.tolist()]
        self.op_names, self.tensor_names = _names(graph, plan, tables)
        self.ops: list[list[int]] = [[] for _ in self.chip]
        for op in order.tolist():
            self.ops[self.kernel_of[op]].append(op)
        self._read_tensors(tables)
        self._serve_in_order()

    def _read_tensors(self, tables: CostTables) -> None:
        """Who makes, reads and waits for what."""
        producer = tables.tensor_producer.tolist()
        self.home = [_NONE if op == NO_PRODUCER else self.kernel_of[op] for op in producer]
        self.made: list[list[int]] = [[] for _ in self.chip]  # by op in the plan's order, then ascending
        self.read: list[list[int]] = [[] for _ in self.chip]  # from other kernels
        self.readers: list[list[int]] = [[] for _ in self.home]  # other kernels
        ptr, reader = tables.reader_ptr.tolist(), tables.reader_op.tolist()
        place = {op: i for i, op in enumerate(op for ops in self.ops for op in ops)}
        made = (k for k, home in enumerate(self.home) if home != _NONE)
        for k in sorted(made, key=lambda k: place[producer[k]]):
            self.made[home := self.home[k]].append(k)
            self.readers[k] = sorted({self.kernel_of[op] for op in reader[ptr[k] : ptr[k + 1]]} - {home})
            for m in self.readers[k]:
                self.read[m].append(k)

    def _serve_in_order(self) -> None:
        """Whom each chip and link served before and after: kernels as ordered, tensors as they ask."""
        self.before: list[int] = []
        last: dict[int, int] = {}
        for m, chip in enumerate(self.chip):
            self.before.append(last.get(chip, _NONE))
            last[chip] = m
        self.after = [_NONE] * len(self.chip)
        for m, before in enumerate(self.before):
            if before != _NONE:
                self.after[before] = m
        self.link_before: dict[int, list[tuple[int, int]]] = {}  # of a tensor: link, tensor before it there
        self.link_after: dict[int, list[tuple[int, int]]] = {}
        self.host_before: dict[int, int] = {}
        holder: dict[int, int] = {}
        last_output = _NONE
        for m in self.by_end:
            for k in self.made[m]:
                if self.is_output[k]:
                    self.host_before[k], last_output = last_output, k
                for link in self._links(k):
                    if link in holder:
                        self.link_before.setdefault(k, []).append((link, holder[link]))
                        self.link_after.setdefault(holder[link], []).append((link, k))
                    holder[link] = k
        self.host_after = {before: k for k, before in self.host_before.items() if before != _NONE}

    def end_s(self, m: int) -> float:
        return float(self.start_s[m] + self.kernel_s[m])

    def hold_s(self, k: int, link: int) -> float:
        """Seconds that a tensor holds a link."""
        return float(self.size[k] * self.rate[link])

    def host_s(self, k: int) -> float:
        """Seconds that an output takes to the host."""
        return float(self.size[k] * self.tables.host_out_s_per_byte)

    def _links(self, k: int) -> list[int]:
        """All links that a tensor holds while it is sent."""
        home = self.chip[self.home[k]]
        return list(dict.fromkeys(link for m in self.readers[k] for link in self._route(home, self.chip[m])))

    @cached_property
    def _routes(self) -> dict[tuple[int, int], list[int]]:
        return {}

    def _route(self, source: int, chip: int) -> list[int]:
        if (source, chip) not in self._routes:
            tables, num_chips = self.tables, self.tables.num_chips
            if tables.is_ring:
                links = [(source + hop) % num_chips for hop in range((chip - source) % num_chips)]
            else:
                pair = source * num_chips + chip
                links = tables.route_link[tables.route_ptr[pair] : tables.route_ptr[pair + 1]].tolist()
            self._routes[source, chip] = links if source != chip else []
        return self._routes[source, chip]

    def arrival_s(self, k: int, reader: int) -> float:
        """When a tensor is at a reader on whatever chip."""
        return self.after_sent_s(k, reader) + (
            self.end_s(self.home[k]) if self.chip[reader] == self.chip[self.home[k]] else self.sent_s[k]
        )

    def after_sent_s(self, k: int, reader: int) -> float:
        """Seconds from chip to chip."""
        source, chip = self.chip[self.home[k]], self.chip[reader]
        return float(transfer_s(self.tables, source, chip, self.size[k]))

    # ------------------------------------------------------------------ backwards: slack

    def slack_s(self) -> list[float]:
        """[M] how much later each kernel may start."""
        rest_s = [0.0] * len(self.chip)  # from the start of a kernel to the end of all that waits for it
        sent_rest_s, host_rest_s = [0.0] * len(self.home), [0.0] * len(self.home)
        for m in reversed(self.by_end):
            after_s = 0.0 if self.after[m] == _NONE else rest_s[self.after[m]]
            for k in reversed(self.made[m]):
                for reader in self.readers[k]:
                    there_s = self.after_sent_s(k, reader) + rest_s[reader]
                    if self.chip[reader] == self.chip[m]:
                        after_s = max(after_s, there_s)
                    else:
                        sent_rest_s[k] = max(sent_rest_s[k], there_s)
                for link, other in self.link_after.get(k, ()):
                    sent_rest_s[k] = max(sent_rest_s[k], self.hold_s(k, link) + sent_rest_s[other])
                if self.is_output[k]:
                    host_rest_s[k] = self.host_s(k)
                    if k in self.host_after:
                        host_rest_s[k] += host_rest_s[self.host_after[k]]
                after_s = max(after_s, sent_rest_s[k], host_rest_s[k])
            rest_s[m] = self.kernel_s[m] + after_s
        ends = zip(self.start_s, rest_s, strict=True)
        return [max(self.makespan_s - start_s - after_s, 0.0) for start_s, after_s in ends]

    # ------------------------------------------------------------------ backwards: the chain

    def pieces(self) -> Iterator[Piece]:
        """The critical path from its end."""
        ends = [_Cause(self.end_s(m), "end", m) for m in range(len(self.chip))]
        ends += [_Cause(self.to_host_s[k] + self.host_s(k), "to host", k) for k in self.host_before]
        at = max(ends, key=lambda cause: cause.time_s)
        while at.kind != "start":
            piece, at = self._step(at)
            if piece.seconds > 0:
                yield piece

    def _step(self, at: _Cause) -> tuple[Piece, _Cause]:
        """The piece that ends with ``at``, and why it began when it did."""
        k = m = at.number
        if at.kind == "host in":
            return Piece("host in", "host in", self._named(m), 0.0, at.time_s), _Cause(0.0, "start")
        if at.kind == "end":
            chip = f"chip {self.chip[m]}"
            return Piece("kernel", chip, self._named(m), self.start_s[m], at.time_s), self._start(m)
        home = self.home[k]
        made = _Cause(self.end_s(home), "end", home)
        if at.kind == "to host":
            before = self.host_before[k]
            causes = [made]
            if before != _NONE:
                causes.append(_Cause(self.to_host_s[before] + self.host_s(before), "to host", before))
            piece = Piece("host out", "host out", self.tensor_names[k], self.to_host_s[k], at.time_s)
            return piece, max(causes, key=lambda cause: cause.time_s)
        causes = [made]
        for link, other in self.link_before.get(k, ()):
            causes.append(_Cause(self.sent_s[other] + self.hold_s(other, link), "link", other, link))
        kind: Kind = "transfer" if at.kind == "sent" else "wait"
        where = f"chips {self.chip[home]}->{at.link}"
        if at.kind == "link":
            where = self.target.link_names[at.link]
        piece = Piece(kind, where, self.tensor_names[k], self.sent_s[k], at.time_s)
        return piece, max(causes, key=lambda cause: cause.time_s)

    def _start(self, m: int) -> _Cause:
        """Why kernel ``m`` did not start before: of causes at the same time, what it reads."""
        causes = []
        for k in self.read[m]:
            home = self.home[k]
            if self.chip[home] == self.chip[m]:
                causes.append(_Cause(self.end_s(home), "end", home))
            else:
                causes.append(_Cause(self.arrival_s(k, m), "sent", k, self.chip[m]))
        if self.before[m] != _NONE:
            causes.append(_Cause(self.end_s(self.before[m]), "end", self.before[m]))
        latest = max(causes, key=lambda cause: cause.time_s, default=_Cause(0.0, "start"))
        if latest.time_s < self.start_s[m]:
            return _Cause(self.start_s[m], "host in", m)
        return latest

    def _named(self, m: int) -> str:
        return self.op_names[self.ops[m][0]]


def _names(graph: Graph, plan: Plan, tables: CostTables) -> tuple[list[str], list[str]]:
    """Names of ops and tensors: of the graph, then of relays, then of clones and what they write."""
    copies = copies_of(graph, plan)
    relayed = zip(copies.relay_tensor.tolist(), copies.relay_chip.tolist(), strict=True)
    relays = [relay_name(graph.tensor_names[k], chip) for k, chip in relayed]
    cloned = [*zip(copies.clone_op.tolist(), copies.clone_chip.tolist(), strict=True)]
    ptr, outputs = graph.op_outputs
    clones = [clone_name(graph.op_names[op], chip) for op, chip in cloned]
    written = [
        clone_name(graph.tensor_names[k], chip)
        for op, chip in cloned
        for k in sorted(outputs[ptr[op] : ptr[op + 1]])
    ]
    return [*graph.op_names, *relays, *clones], [*graph.tensor_names, *relays, *written]
