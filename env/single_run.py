"""One execution of a plan alone, as plain lists, for analyses of why things happen when they do."""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np

from go_opt.env.copies.expanded_tables import PlanTables
from go_opt.env.copies.relays import relay_name, relays_of
from go_opt.env.cost import CostTables
from go_opt.env.cost.routes import transfer_s
from go_opt.env.evaluation import execution_inputs
from go_opt.env.model.makespan import execution
from go_opt.env.target import Target
from go_opt.model.graph import NO_PRODUCER, Graph
from go_opt.model.plan import Plan

NONE: Final = -1


class SingleRun:
    """When kernels run and tensors are sent. ``M`` kernels along the plan's order, ``K`` tensors."""

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
        self.op_names, self.tensor_names = _names(graph, plan)
        self.ops: list[list[int]] = [[] for _ in self.chip]
        for op in order.tolist():
            self.ops[self.kernel_of[op]].append(op)
        self._read_tensors(tables)
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


def _names(graph: Graph, plan: Plan) -> tuple[list[str], list[str]]:
    """Names of ops and tensors: of the graph, then of relays."""
    pairs = zip(*(column.tolist() for column in relays_of(graph, plan)), strict=True)
    relays = [relay_name(graph.tensor_names[k], chip) for k, chip in pairs]
    return [*graph.op_names, *relays], [*graph.tensor_names, *relays]
