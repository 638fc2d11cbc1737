"""The critical path of a plan's makespan (kernels, transfers and waits), slack of kernels, and idle time.

The execution is that of :mod:`go_opt.env.model.makespan`. The path is traced back from the last end: each
piece begins when the piece before it ends. The slack of a kernel is how much later it may start
without a longer makespan, if chips, links and the host's link keep their order of service.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, get_args

import numpy as np

from go_opt.env.copies.relays import plan_tables, relay_name, relays_of
from go_opt.env.cost.tables import CostTables, transfer_s
from go_opt.env.model.makespan import executions
from go_opt.env.target import Target
from go_opt.model.graph import NO_PRODUCER, Graph
from go_opt.model.plan import Plan

NONE: Final = -1
Kind = Literal["kernel", "transfer", "wait", "host in", "host out"]
# A kernel that runs elsewhere, a busy link, a tensor on its way, the host's link, nothing left to do.
IdleCause = Literal["kernel", "link", "transfer", "host", "nothing"]


@dataclass(frozen=True)
class Piece:
    """A stretch of the makespan. For a wait, ``name`` is the tensor that holds the link meanwhile."""

    kind: Kind
    resource: str  # "chip 3", "link 2->3" (of a transfer over several: "chips 2->5"), "host in", "host out"
    name: str  # first op of the kernel, or the tensor; for host in, the op that waits for its inputs
    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True)
class KernelSlack:
    """When a kernel runs in one execution alone, and how much later it may start."""

    ops: tuple[str, ...]
    chip: int
    start_s: float
    seconds: float
    slack_s: float


@dataclass(frozen=True)
class Idle:
    """A stretch in which a chip runs nothing, with the cause of its next kernel's wait."""

    chip: int
    cause: IdleCause
    name: str  # first op of the kernel that runs elsewhere; the tensor; for host, the op that waits; or empty
    start_s: float
    end_s: float


@dataclass(frozen=True)
class CriticalPath:
    """The pieces follow each other from 0 to the makespan without a gap."""

    makespan_s: float
    pieces: tuple[Piece, ...]
    kernels: tuple[KernelSlack, ...]  # along the plan's order
    idle: tuple[Idle, ...]  # on each chip, kernels and idle stretches fill the makespan

    def idle_s(self, chip: int | None = None) -> dict[IdleCause, float]:
        """Seconds that a chip, or all of them together, waits for each cause."""
        seconds = dict.fromkeys(get_args(IdleCause), 0.0)
        for idle in self.idle:
            if chip in (None, idle.chip):
                seconds[idle.cause] += idle.end_s - idle.start_s
        return seconds

    @property
    def by_resource(self) -> tuple[tuple[str, float], ...]:
        """Seconds of the path on each chip and link, the most first."""
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
    ran = _Run(graph, target, plan)
    columns = zip(ran.ops, ran.chip, ran.start_s, ran.kernel_s, ran.slack_s(), strict=True)
    kernels = tuple(KernelSlack(tuple(ran.op_names[op] for op in ops), *row) for ops, *row in columns)
    return CriticalPath(ran.makespan_s, tuple(reversed([*ran.pieces()])), kernels, tuple(ran.idle()))


class _Cause(NamedTuple):
    """Why something began: the end of a kernel, a sent tensor, a free link, the host's link, or the start."""

    time_s: float
    kind: Literal["end", "sent", "link", "host in", "to host", "start"]
    number: int = NONE
    link: int = NONE


class _Run:
    """One execution of a plan alone, traced backwards.

    ``M`` kernels along the plan's order, ``K`` tensors.
    """

    def __init__(self, graph: Graph, target: Target, plan: Plan) -> None:
        placed = plan_tables(graph, target, plan)
        self.target, self.tables = target, placed.tables
        rows = placed.placement[None], placed.order[None], placed.fusion_group[None]
        ran = next(executions(placed.tables, *rows, placed.evaluate().stream_bytes))
        self.makespan_s, self.start_s = ran.makespan_s, ran.start_s.tolist()
        self.sent_s, self.to_host_s = ran.sent_s.tolist(), ran.to_host_s.tolist()
        self.chip, self.kernel_s = ran.chip.tolist(), ran.kernel_s.tolist()
        self.by_end = np.argsort(ran.rank).tolist()
        self.kernel_of = ran.kernel_of.tolist()
        self.size = placed.tables.tensor_bytes.tolist()
        self.is_output = placed.tables.tensor_is_output.tolist()
        self.rate = placed.tables.link_s_per_byte.tolist()
        self.op_names, self.tensor_names = _names(graph, plan)
        self.ops: list[list[int]] = [[] for _ in self.chip]
        for op in placed.order.tolist():
            self.ops[self.kernel_of[op]].append(op)
        self._read_tensors(placed.tables)
        self._serve_in_order()

    def _read_tensors(self, tables: CostTables) -> None:
        """Fill in the kernels that make and read each tensor."""
        producer = tables.tensor_producer.tolist()
        self.home = [NONE if op == NO_PRODUCER else self.kernel_of[op] for op in producer]
        self.made: list[list[int]] = [[] for _ in self.chip]  # by op in the plan's order, then ascending
        self.read: list[list[int]] = [[] for _ in self.chip]  # from other kernels
        self.readers: list[list[int]] = [[] for _ in self.home]  # other kernels
        ptr, reader = tables.reader_ptr.tolist(), tables.reader_op.tolist()
        place = {op: i for i, op in enumerate(op for ops in self.ops for op in ops)}
        made = (k for k, home in enumerate(self.home) if home != NONE)
        for k in sorted(made, key=lambda k: place[producer[k]]):
            self.made[home := self.home[k]].append(k)
            self.readers[k] = sorted({self.kernel_of[op] for op in reader[ptr[k] : ptr[k + 1]]} - {home})
            for m in self.readers[k]:
                self.read[m].append(k)

    def _serve_in_order(self) -> None:
        """Fill in the neighbours in service of each kernel on its chip, and of each tensor on its links."""
        self.before: list[int] = []
        last: dict[int, int] = {}
        for m, chip in enumerate(self.chip):
            self.before.append(last.get(chip, NONE))
            last[chip] = m
        self.after = [NONE] * len(self.chip)
        for m, before in enumerate(self.before):
            if before != NONE:
                self.after[before] = m
        self.link_before: dict[int, list[tuple[int, int]]] = {}  # by tensor: link, tensor before it
        self.link_after: dict[int, list[tuple[int, int]]] = {}
        self.host_before: dict[int, int] = {}
        holder: dict[int, int] = {}
        last_output = NONE
        for m in self.by_end:
            for k in self.made[m]:
                if self.is_output[k]:
                    self.host_before[k], last_output = last_output, k
                for link in self._links(k):
                    if link in holder:
                        self.link_before.setdefault(k, []).append((link, holder[link]))
                        self.link_after.setdefault(holder[link], []).append((link, k))
                    holder[link] = k
        self.host_after = {before: k for k, before in self.host_before.items() if before != NONE}

    def end_s(self, m: int) -> float:
        return float(self.start_s[m] + self.kernel_s[m])

    def hold_s(self, k: int, link: int) -> float:
        """Seconds that a tensor holds a link."""
        return float(self.size[k] * self.rate[link])

    def host_s(self, k: int) -> float:
        """Seconds that an output takes to the host."""
        return float(self.size[k] * self.tables.host_out_s_per_byte)

    def _links(self, k: int) -> list[int]:
        """All links that a tensor holds while it is sent; none without bytes."""
        if self.size[k] == 0:
            return []
        home, chips = self.chip[self.home[k]], dict.fromkeys(self.chip[m] for m in self.readers[k])
        routes = (self.target.topology.route(home, chip) for chip in chips)
        return list(dict.fromkeys(link for route in routes for link in route))

    def arrival_s(self, k: int, reader: int) -> float:
        """When a tensor arrives at the chip of a reader, which may be its own."""
        return self.after_sent_s(k, reader) + (
            self.end_s(self.home[k]) if self.chip[reader] == self.chip[self.home[k]] else self.sent_s[k]
        )

    def after_sent_s(self, k: int, reader: int) -> float:
        """Seconds of the transfer to a reader's chip; 0 on its own."""
        source, chip = self.chip[self.home[k]], self.chip[reader]
        return float(transfer_s(self.tables, source, chip, self.size[k]))

    def named(self, m: int) -> str:
        return self.op_names[self.ops[m][0]]

    # ------------------------------------------------------------------ backwards: slack

    def slack_s(self) -> list[float]:
        """[M] seconds by which each kernel may start later."""
        rest_s = [0.0] * len(self.chip)  # from the start of a kernel to the end of all that depends on it
        sent_rest_s, host_rest_s = [0.0] * len(self.home), [0.0] * len(self.home)
        for m in reversed(self.by_end):
            after_s = 0.0 if self.after[m] == NONE else rest_s[self.after[m]]
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

    # ------------------------------------------------------------------ what chips wait for

    def idle(self) -> Iterator[Idle]:
        """Idle stretches before each kernel, along the plan's order; then after each chip's last kernel."""
        free_s = [0.0] * self.tables.num_chips
        for m, chip in enumerate(self.chip):
            yield from self._stretches(chip, free_s[chip], self._waited_for(m))
            free_s[chip] = self.end_s(m)
        for chip, begin_s in enumerate(free_s):
            yield from self._stretches(chip, begin_s, [("nothing", "", self.makespan_s)])

    def _waited_for(self, m: int) -> list[tuple[IdleCause, str, float]]:
        """The causes that kernel ``m`` waited for, one after the other, with their ends."""
        cause = self._start(m)
        if cause.kind != "sent":
            return [("host", self.named(m), self.start_s[m])]
        k = cause.number
        return [
            ("kernel", self.named(self.home[k]), self.end_s(self.home[k])),
            ("link", self.tensor_names[k], self.sent_s[k]),
            ("transfer", self.tensor_names[k], self.start_s[m]),
        ]

    def _stretches(
        self, chip: int, begin_s: float, until: list[tuple[IdleCause, str, float]]
    ) -> Iterator[Idle]:
        for cause, name, end_s in until:
            if end_s > begin_s:
                yield Idle(chip, cause, name, begin_s, end_s)
                begin_s = end_s

    # ------------------------------------------------------------------ backwards: the chain

    def pieces(self) -> Iterator[Piece]:
        """The pieces of the critical path, the last first."""
        ends = [_Cause(self.end_s(m), "end", m) for m in range(len(self.chip))]
        ends += [_Cause(self.to_host_s[k] + self.host_s(k), "to host", k) for k in self.host_before]
        at = max(ends, key=lambda cause: cause.time_s)
        while at.kind != "start":
            piece, at = self._step(at)
            if piece.seconds > 0:
                yield piece

    def _step(self, at: _Cause) -> tuple[Piece, _Cause]:
        """The piece that ends at ``at``, and the cause of its begin."""
        k = m = at.number
        if at.kind == "host in":
            return Piece("host in", "host in", self.named(m), 0.0, at.time_s), _Cause(0.0, "start")
        if at.kind == "end":
            chip = f"chip {self.chip[m]}"
            return Piece("kernel", chip, self.named(m), self.start_s[m], at.time_s), self._start(m)
        home = self.home[k]
        made = _Cause(self.end_s(home), "end", home)
        if at.kind == "to host":
            before = self.host_before[k]
            causes = [made]
            if before != NONE:
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
        """Why kernel ``m`` did not start earlier; among causes at the same time, a tensor that it reads."""
        causes = []
        for k in self.read[m]:
            home = self.home[k]
            if self.chip[home] == self.chip[m]:
                causes.append(_Cause(self.end_s(home), "end", home))
            else:
                causes.append(_Cause(self.arrival_s(k, m), "sent", k, self.chip[m]))
        if self.before[m] != NONE:
            causes.append(_Cause(self.end_s(self.before[m]), "end", self.before[m]))
        latest = max(causes, key=lambda cause: cause.time_s, default=_Cause(0.0, "start"))
        if latest.time_s < self.start_s[m]:
            return _Cause(self.start_s[m], "host in", m)
        return latest


def _names(graph: Graph, plan: Plan) -> tuple[list[str], list[str]]:
    """Names of ops and tensors: of the graph, then of relays."""
    pairs = zip(*(column.tolist() for column in relays_of(graph, plan)), strict=True)
    relays = [relay_name(graph.tensor_names[k], chip) for k, chip in pairs]
    return [*graph.op_names, *relays], [*graph.tensor_names, *relays]
