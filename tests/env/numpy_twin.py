"""The slow, obvious twin of the analytical environment, read from design section 5.

Loops over tensors, dictionaries and sets; no table of the package is used, only the
graph, the target's fields and the plan. What the simulator knows counts as far as the
parameters have it: by default as far as the target's model does. Memory is
``memory_twin.py``'s. Readings of the design where it leaves room:

* A kernel reads a tensor from outside once; the widest read among its ops counts.
* A tensor is sent whole, whatever its readers touch.
* An input crosses the host's link once, or once for each chip that reads it.
* A streamed weight leaves the memory entirely and costs the bytes touched on its chip.
* Latency: a transfer takes its set-up, the latencies of its hops and its bytes over the
  slowest link, without contention; inputs set out for each chip at once.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from heapq import heappop, heappush
from itertools import chain
from math import ceil, floor

import numpy as np

from go_opt.common.arrays import FloatArray
from go_opt.env import Target
from go_opt.env.copies.relays import COPY_TYPE
from go_opt.env.gpu.figures import KernelFigures
from go_opt.env.target import ChipKind
from go_opt.env.target.kinds import KindParameters, SimulatorParameters
from go_opt.model.dtypes import DTYPE_BITS, DTYPES
from go_opt.model.graph import ACTIVATION, INPUT, MATRIX, VECTOR, WEIGHT, Graph, State
from go_opt.model.kernel_patterns import pattern_kernels
from go_opt.model.plan import Plan
from tests.env.gpu_twin import compute_seconds, overlapped
from tests.env.memory_twin import chip_memory

COLLECTIVES = {
    "AllGather": "all_gather", "AllReduce": "all_reduce", "AllToAll": "all_to_all",
    "ReduceScatter": "reduce_scatter",
}  # fmt: skip


@dataclass
class Kernel:
    """A fusion group: one kernel of one chip."""

    ops: list[int]
    chip: int
    seconds: float = 0.0


@dataclass
class Terms:
    """What the environment answers for one plan."""

    compute_s: FloatArray  # [D]
    link_s: FloatArray  # [L] links, host in, host out
    peak_bytes: list[int]  # [D]
    weight_bytes: list[int]  # [D] resident
    stream_bytes: list[int]  # [D]
    interval_s: float
    terms_s: FloatArray  # the terms the interval is the maximum of
    latency_s: float
    valid: bool


class Twin:
    """One graph on one target under one plan."""

    def __init__(
        self,
        graph: Graph,
        target: Target,
        plan: Plan,
        parameters: SimulatorParameters | None = None,
        fed: frozenset[int] = frozenset(),
    ) -> None:
        """``fed`` are chips to which the chip before forwards streamed weights."""
        self.fed = fed
        self.graph, self.target, self.plan = graph, target, plan
        self.parameters = target.modelled if parameters is None else parameters
        self.chips = range(target.num_chips)
        self.num_links = target.topology.num_links
        self.tensor_bytes = [
            self.size_bytes(k, int(graph.tensor_elements[k])) for k in range(graph.num_tensors)
        ]
        page = max(kind.alignment_bytes for kind in self.parameters.kinds)
        self.stored_bytes = [-(-size // page) * page for size in self.tensor_bytes]
        self.touched = [self.reads_of(k) for k in range(graph.num_tensors)]  # op -> bytes
        self.kept: set[int] = set()  # states of sequences
        one = list(self.stored_bytes)
        for state in graph.states:
            self.keep(state, max(one[state.read], one[state.next]))
        self.exchange_s: dict[int, float] = {}  # op -> seconds
        for op, op_type in enumerate(graph.op_types):
            if op_type in COLLECTIVES:
                self.exchange(op, COLLECTIVES[op_type])
        self.reads: dict[int, list[int]] = defaultdict(list)  # op -> tensors
        self.writes: dict[int, list[int]] = defaultdict(list)
        for k in range(graph.num_tensors):
            self.writes[int(graph.tensor_producer[k])].append(k)
            for op in self.touched[k]:
                self.reads[op].append(k)
        self.in_attention = set(chain.from_iterable(pattern_kernels(graph, ("attention",))))
        self.kernels: list[Kernel] = []
        self.kernel_of: dict[int, int] = {}
        self.make_kernels()
        for kernel in self.kernels:
            kernel.seconds = self.kernel_seconds(kernel)

    def keep(self, state: State, size: int) -> None:
        """A state of ``size`` bytes lies where it is read; its writer writes it."""
        read, following = state.read, state.next
        self.stored_bytes[read] = state.buffers * size
        if state.scope == "sequence":
            self.kept.add(read)
        self.tensor_bytes[read] = 0
        if following == read:
            return
        writer = int(self.graph.tensor_producer[following])
        if state.in_place and not self.graph.op_types[writer].endswith("Attention"):
            self.touched[read][writer] = 0
        self.touched[read][writer] += self.size_bytes(following, state.written)
        if state.in_place:  # a part of the state
            self.tensor_bytes[following] = self.stored_bytes[following] = 0

    def stored_on(self, tensor: int, chip: int) -> int:
        """Bytes in a chip's memory; of a state, for the chip's sequences or those of a busier replica."""
        if tensor not in self.kept:
            return self.stored_bytes[tensor]
        replicas = max(self.plan.replication[self.plan.placement == chip].tolist())
        sequences = {q for q in range(self.graph.sequences) if q % replicas == 0}
        return len(sequences) * self.stored_bytes[tensor]

    def exchange(self, op: int, name: str) -> None:
        """A collective has the seconds of its figures, and nothing else moves what it exchanges."""
        sent = [k for k in range(self.graph.num_tensors) if op in self.touched[k]]
        makers = [int(self.graph.tensor_producer[k]) for k in sent]
        tensors = len(self.graph.outputs_of(op))  # more than one: of a bucket
        group = len(sent) // tensors
        rows = {one.group: one for one in self.target.collectives if one.op == name}
        figures = rows.get(group, rows.get(0))
        if figures is None or {self.graph.op_types[one] for one in makers} != {"CollectiveSend"}:
            return
        sizes = [self.size_bytes(k, int(self.graph.tensor_elements[k])) for k in sent]
        whole = {"all_gather": sum(sizes), "all_to_all": sum(sizes) / group}.get(name, sum(sizes) / group)
        latency_s = figures.start_s + figures.hop_s * (group - 1)
        crossing = whole * (group - 1) / group * (2 if name == "all_reduce" else 1)
        moving_s = crossing / figures.link_bytes_per_s
        moving_s += whole / figures.copy_bytes_per_s if figures.copy_bytes_per_s else 0.0
        self.exchange_s[op] = (latency_s**0.6 + moving_s**0.6) ** (1 / 0.6)
        self.exchange_s |= dict.fromkeys(makers, 0.0)
        for k in sent:
            self.tensor_bytes[k] = self.stored_bytes[k] = self.touched[k][op] = 0

    def evaluate(self) -> Terms:
        compute_s = np.zeros(len(self.chips))
        for kernel in self.kernels:
            compute_s[kernel.chip] += kernel.seconds
        memory = [chip_memory(self, d) for d in self.chips]
        stream = [held.stream_bytes for held in memory]
        link_s = self.link_seconds(stream)
        for d in self.fed:
            forwarded = memory[d].forwarded_bytes
            link_s[d - 1] += forwarded * self.seconds_per_byte(d - 1)
            link_s[-2] -= forwarded / self.target.host_in_bytes_per_s
        terms_s = self.interval_terms(compute_s, link_s, stream)
        if self.graph.has_scope("sequence"):  # a sequence waits for its last inference
            terms_s = np.append(np.zeros(len(compute_s) + len(link_s)), self.latency() / self.graph.sequences)
            own_s = self.interval_terms(compute_s, link_s, stream)
            terms_s[: len(own_s)] = own_s
        return Terms(
            compute_s=compute_s,
            link_s=link_s,
            peak_bytes=[held.peak_bytes for held in memory],
            weight_bytes=[held.weight_bytes for held in memory],
            stream_bytes=stream,
            interval_s=float(terms_s.max()),
            terms_s=terms_s,
            latency_s=self.latency(),
            valid=not any(held.short_bytes for held in memory),
        )

    # ------------------------------------------------------------------ sizes and rates

    def kind(self, chip: int) -> ChipKind:
        return [kind for kind in self.target.kinds for _ in range(kind.count)][chip]

    def costed(self, code: int) -> str:
        """The type something is costed in: the native one for floating types."""
        name = DTYPES[code]
        floating = name.startswith(("float", "bfloat"))
        return self.target.native_dtype if floating and self.graph.precision == "native" else name

    def size_bytes(self, tensor: int, elements: int) -> int:
        bits = elements * int(DTYPE_BITS[DTYPES.index(self.costed(self.graph.tensor_dtype[tensor]))])
        return -(-bits // 8)

    def reads_of(self, tensor: int) -> dict[int, int]:
        rows = range(self.graph.reader_ptr[tensor], self.graph.reader_ptr[tensor + 1])
        return {
            int(self.graph.reader_op[r]): self.size_bytes(tensor, int(self.graph.reader_elements[r]))
            for r in rows
        }

    def op_seconds(self, op: int, chip: int) -> float:
        """Flops over the peak rate of the op's class and type."""
        kind, native = self.kind(chip), self.target.native_dtype
        is_matrix = self.graph.op_class[op] == MATRIX
        rates = kind.matrix_flops_per_s if is_matrix else kind.vector_flops_per_s
        name = self.costed(self.graph.op_dtype[op])
        if name in rates:
            rate = rates[name]
        elif "default" in rates:
            rate = rates["default"]
        else:
            bits, native_bits = (int(DTYPE_BITS[DTYPES.index(n)]) for n in (name, native))
            rate = rates.get(native, max(rates.values())) * min(1.0, native_bits / bits)
        seconds = float(self.graph.op_flops[op]) / rate
        return self.shaped(op, seconds, self.parameters.kinds[self.target.chip_kind[chip]])

    def shaped(self, op: int, seconds: float, kind: KindParameters) -> float:
        """As long as whole tiles, waves and lanes take, and the unit to fill, times the op's factor."""
        output = sum(int(self.graph.tensor_elements[k]) for k in self.writes[op])
        is_matrix = self.graph.op_class[op] == MATRIX
        shape = self.product(op, output) if is_matrix else (1, 1, 1, 1)
        of_type = [one for one in kind.op_factors if one.op_type == self.graph.op_types[op]]
        found = [one for one in of_type if one.shape == shape] or [one for one in of_type if not one.shape]
        return self.padded(op, seconds, kind) * (found[0].factor if found else 1.0)

    def padded(self, op: int, seconds: float, kind: KindParameters) -> float:
        if not self.graph.op_flops[op]:
            return seconds
        output = sum(int(self.graph.tensor_elements[k]) for k in self.writes[op])
        if self.graph.op_class[op] == VECTOR:
            is_selection = self.graph.op_types[op] == "TopK"
            elements = max(max(map(max, self.operands(op)), default=0) if is_selection else output, 1)
            seconds *= ceil(elements / kind.vector_lanes) * kind.vector_lanes / elements
            is_exponential = op in self.in_attention and self.graph.op_types[op] in ("Softmax", "Exp")
            least_s = output / kind.kernels.scores_per_s if kind.kernels and is_exponential else 0.0
            return max(seconds, least_s)
        if self.graph.op_class[op] != MATRIX:
            return seconds
        if kind.kernels:
            return self.on_gpu(op, seconds, kind.kernels, self.product(op, output))
        batch, rows, inner, columns = self.product(op, output)
        steps = batch * ceil(rows / kind.tile_rows) * ceil(columns / kind.tile_columns)
        steps *= ceil(inner / kind.tile_inner)
        tile = kind.tile_rows * kind.tile_inner * kind.tile_columns
        whole = 2 * ceil(steps / kind.tiles_at_once) * kind.tiles_at_once * tile
        is_ideal = tile * kind.tiles_at_once == 1
        return seconds * (1 if is_ideal else max(1, whole / float(self.graph.op_flops[op]))) + kind.fill_s

    def on_gpu(
        self, op: int, seconds: float, figures: KernelFigures, shape: tuple[int, int, int, int]
    ) -> float:
        """With its own traffic, but for a product in a pattern of attention; only bfloat16."""
        rate = float(self.graph.op_flops[op]) / seconds
        if op in self.in_attention:
            return compute_seconds(figures, rate, shape, is_stored=False)
        if shape == (1, 1, 1, 1):
            compute_s = seconds / figures.matrix_share
        else:
            compute_s = compute_seconds(figures, rate, shape)
        (kind,) = self.target.kinds
        moved = sum(self.touched[k][op] for k in self.reads[op])
        moved += sum(
            self.tensor_bytes[k] for k in self.writes[op] if self.touched[k] or self.graph.tensor_is_output[k]
        )
        return overlapped(compute_s, moved / (kind.sram_bytes_per_s * figures.memory_share))

    def operands(self, op: int) -> tuple[list[int], list[int]]:
        """Elements that an op reads of activations and of weights, each the largest first."""
        read: tuple[list[int], list[int]] = [], []
        for k in self.reads[op]:
            rows = range(self.graph.reader_ptr[k], self.graph.reader_ptr[k + 1])
            touched = max(int(self.graph.reader_elements[r]) for r in rows if self.graph.reader_op[r] == op)
            read[int(self.graph.tensor_kind[k] == WEIGHT)].append(touched)
        return sorted(read[0], reverse=True), sorted(read[1], reverse=True)

    def product(self, op: int, output: int) -> tuple[int, int, int, int]:
        """Batch, rows, inner and columns of a product, from its flops, its output and what it reads."""
        row = self.graph.rule_of(op)
        if row is not None and len(row.operands) < 2:
            return 1, 1, 1, 1  # an Einsum that turns or sums one tensor is no product
        name, flops = self.graph.op_types[op], Fraction(float(self.graph.op_flops[op]))
        others, weights = self.operands(op)
        first, second, *_ = *others, 0, 0
        weight, output = max(weights, default=0), max(output, 1)
        has_bias = len(others) + len(weights) > 2
        inner = max(Fraction(1), flops / (2 * output))
        if has_bias and inner % 1 == Fraction(1, 2):
            inner = Fraction(floor(inner))
        if name.endswith(("Attention", "GRU", "LSTM", "MoE", "RNN")):
            return 1, 1, 1, 1
        if weight and (not second or "conv" in name.lower() or first * weight >= inner**2 * output):
            columns = max(Fraction(1), weight / inner)
            if name.endswith(("ConvTranspose", "MatMulNBits")):
                of_bias = output if has_bias and name.endswith("ConvTranspose") else 0
                columns = max(Fraction(1), (flops - of_bias) / max(2 * first, 1))
            rows = output / columns
            if name.endswith("ConvTranspose"):
                inner = max(Fraction(1), weight / columns)
                rows = first / inner
            return 1, max(1, ceil(rows)), ceil(inner), ceil(columns)
        second = second or first
        batch = first * second / (inner**2 * output)
        if batch.denominator > 1 or batch < 1:
            return 1, 1, 1, 1
        return int(batch), ceil(first / inner / batch), ceil(inner), ceil(second / inner / batch)

    # ------------------------------------------------------------------ kernels

    def make_kernels(self) -> None:
        """Kernels along the order; the ops of a group stand next to each other in it."""
        group = None
        for op in map(int, self.plan.order):
            if self.plan.fusion_group[op] != group:
                group = self.plan.fusion_group[op]
                chip = int(self.plan.placement[op])
                self.kernels.append(Kernel([], chip))
            self.kernels[-1].ops.append(op)
            self.kernel_of[op] = len(self.kernels) - 1

    def kernel_seconds(self, kernel: Kernel) -> float:
        kind = self.kind(kernel.chip)
        costed = [op for op in kernel.ops if op not in self.exchange_s]
        exchange_s = sum(self.exchange_s.get(op, 0.0) for op in kernel.ops)
        if not costed:
            return exchange_s
        if kind.name in self.graph.measured_s:
            measured = self.graph.measured_s[kind.name][kernel.ops]
            if not np.isnan(measured).any():
                return float(measured.sum())
        compute = sum(self.op_seconds(op, kernel.chip) for op in costed)
        figures = self.parameters.kinds[self.target.chip_kind[kernel.chip]].kernels
        share, start_s = (figures.memory_share, figures.start_s) if figures else (1.0, 0.0)
        traffic_s = self.kernel_bytes(kernel) / (kind.sram_bytes_per_s * share)
        return exchange_s + max(compute, traffic_s) + max(kind.kernel_overhead_s, start_s)

    def kernel_bytes(self, kernel: Kernel) -> int:
        written = {k for op in kernel.ops for k in self.writes[op]}
        widest: dict[int, int] = {}
        for op in kernel.ops:
            for k in set(self.reads[op]) - written:
                widest[k] = max(widest.get(k, 0), self.touched[k][op])
        return sum(widest.values()) + sum(self.tensor_bytes[k] for k in written if self.is_stored(k))

    def is_stored(self, tensor: int) -> bool:
        """Not where all readers are in the producer's kernel, unless the host reads it."""
        home = self.kernel_of[int(self.graph.tensor_producer[tensor])]
        outside = [op for op in self.touched[tensor] if self.kernel_of[op] != home]
        return bool(outside) or bool(self.graph.tensor_is_output[tensor])

    # ------------------------------------------------------------------ links

    def home(self, tensor: int) -> int:
        return int(self.plan.placement[self.graph.tensor_producer[tensor]])

    def reader_chips(self, tensor: int) -> set[int]:
        return {int(self.plan.placement[op]) for op in self.touched[tensor]}

    def activations(self) -> list[int]:
        return np.flatnonzero(self.graph.tensor_kind == ACTIVATION).tolist()

    def inputs(self) -> list[int]:
        return np.flatnonzero(self.graph.tensor_kind == INPUT).tolist()

    def outputs(self) -> list[int]:
        return [k for k in self.activations() if self.graph.tensor_is_output[k]]

    def is_free(self, link: int) -> bool:
        """The links of a star cost nothing where their chip does not pay for transfers."""
        topology = self.target.topology
        chip = max(int(topology.link_from[link]), int(topology.link_to[link]))
        return topology.kind == "host_star" and not self.kind(chip).pays_transfers

    def seconds_per_byte(self, link: int) -> float:
        """Of a tensor, so of its packets' headers too."""
        packet, header = self.parameters.packet_bytes, self.parameters.packet_header_bytes
        sent = 1.0 + header / packet if packet else 1.0
        return 0.0 if self.is_free(link) else sent / float(self.target.topology.rate_bytes_per_s[link])

    def route(self, a: int, b: int) -> tuple[int, ...]:
        return shortest_route(self.target.topology, a, b)

    def tree(self, tensor: int) -> set[int]:
        """Links an activation crosses: the union of the routes to its readers; none if it has no bytes."""
        home = self.home(tensor)
        if not self.tensor_bytes[tensor]:
            return set()
        return {link for chip in self.reader_chips(tensor) for link in self.route(home, chip)}

    def link_seconds(self, stream: list[int]) -> FloatArray:
        link_s = np.zeros(self.num_links + 2)
        for k in self.activations():
            for link in self.tree(k):
                link_s[link] += self.tensor_bytes[k] * self.seconds_per_byte(link)
        host_in = sum(self.tensor_bytes[k] * self.host_copies(k) for k in self.inputs()) + sum(stream)
        host_out = sum(self.tensor_bytes[k] for k in self.outputs())
        link_s[-2] = host_in / self.target.host_in_bytes_per_s
        link_s[-1] = host_out / self.target.host_out_bytes_per_s
        return link_s

    def host_copies(self, tensor: int) -> int:
        """How often an input crosses the host's link."""
        return 1 if self.parameters.host_multicast else len(self.reader_chips(tensor))

    def is_relayed(self, tensor: int) -> bool:
        """Whether a relay's copy sends it on."""
        copies = self.graph.op_types[int(self.graph.tensor_producer[tensor])] == COPY_TYPE
        return copies and bool(self.reader_chips(tensor) - {self.home(tensor)})

    # ------------------------------------------------------------------ interval, latency

    def interval_terms(self, compute_s: FloatArray, link_s: FloatArray, stream: list[int]) -> FloatArray:
        """Overlapped: chips, then links. Otherwise one sum for each chip."""
        if self.target.overlap:
            return np.concatenate([compute_s, link_s])
        return np.array([compute_s[d] + self.transfers_of(d, link_s, stream[d]) for d in self.chips])

    def transfers_of(self, chip: int, link_s: FloatArray, stream: int) -> float:
        """``in_d + out_d``: loads of the links that end and start here, and host traffic."""
        if not self.kind(chip).pays_transfers:
            return 0.0
        topology = self.target.topology
        ends = zip(topology.link_from, topology.link_to, strict=True)
        links = [link for link, pair in enumerate(ends) if chip in pair]
        host_in = stream + sum(self.tensor_bytes[k] for k in self.inputs() if chip in self.reader_chips(k))
        host_out = sum(self.tensor_bytes[k] for k in self.outputs() if self.home(k) == chip)
        return (
            sum(float(link_s[link]) for link in links)
            + host_in / self.target.host_in_bytes_per_s
            + host_out / self.target.host_out_bytes_per_s
        )

    def transfer_seconds(self, tensor: int, a: int, b: int) -> float:
        if a == b or not self.tensor_bytes[tensor]:
            return 0.0
        route = [link for link in self.route(a, b) if not self.is_free(link)]
        hops = sum(float(self.target.topology.latency_s[link]) for link in route)
        setup_s = self.parameters.kinds[self.target.chip_kind[a]].dma_setup_s
        setup_s += self.target.kinds[self.target.chip_kind[b]].dependency_overhead_s
        return (
            setup_s + hops + self.tensor_bytes[tensor] * max(map(self.seconds_per_byte, route), default=0.0)
        )

    def latency(self) -> float:
        """The longest path of one sample: kernels of a chip one after the other."""
        arrives: dict[int, float] = defaultdict(float)  # kernel -> its last tensor is there
        free_at = [0.0] * len(self.chips)
        for k in self.inputs():
            for op in self.touched[k]:
                at = self.tensor_bytes[k] / self.target.host_in_bytes_per_s
                arrives[self.kernel_of[op]] = max(arrives[self.kernel_of[op]], at)
        done = 0.0
        for m, kernel in enumerate(self.kernels):
            end = max(arrives[m], free_at[kernel.chip]) + kernel.seconds
            free_at[kernel.chip] = end
            done = max(done, end)
            for k in (k for op in kernel.ops for k in self.writes[op]):
                for op in self.touched[k]:
                    chip, reader = int(self.plan.placement[op]), self.kernel_of[op]
                    at = end + self.transfer_seconds(k, kernel.chip, chip)
                    arrives[reader] = max(arrives[reader], at)
                if self.graph.tensor_is_output[k]:
                    done = max(done, end + self.tensor_bytes[k] / self.target.host_out_bytes_per_s)
        return done

    # ------------------------------------------------------------------ makespan

    def makespan(self, stream: list[int]) -> float:
        """One execution alone: of all kernels that may run, always the one that ends first.

        A chip waits for its streamed weights before its first kernel. A link is busy for
        the bytes over its own rate.
        """
        queue = {d: [m for m, kernel in enumerate(self.kernels) if kernel.chip == d] for d in self.chips}
        awaited: list[set[int]] = [set() for _ in self.kernels]
        for k in self.activations():
            for op in self.touched[k]:
                if self.kernel_of[op] != self.kernel_of[int(self.graph.tensor_producer[k])]:
                    awaited[self.kernel_of[op]].add(k)
        there_at = self.host_arrivals(stream)
        free_at = [0.0] * (self.num_links + 2)
        chip_free_at = [0.0] * len(self.chips)
        done = 0.0
        while any(queue.values()):
            ends = {
                d: max(there_at[queue[d][0]], chip_free_at[d]) + self.kernels[queue[d][0]].seconds
                for d in self.chips
                if queue[d] and not awaited[queue[d][0]]
            }
            chip = min(ends, key=lambda d: (ends[d], d))
            now = chip_free_at[chip] = ends[chip]
            done = max(done, now)
            ops = self.kernels[queue[chip].pop(0)].ops
            for k in (k for op in ops for k in sorted(self.writes[op])):
                done = max(done, self.send(k, now, free_at, there_at))
                for op in self.touched[k]:
                    awaited[self.kernel_of[op]].discard(k)
        return done

    def send(self, tensor: int, now: float, free_at: list[float], there_at: dict[int, float]) -> float:
        """Send a tensor to its readers and to the host; when the host has it, or ``now``."""
        links = self.tree(tensor)
        begin = max([now, *(free_at[link] for link in links)])
        for link in links:
            free_at[link] = begin + self.tensor_bytes[tensor] * self.seconds_per_byte(link)
        home = self.home(tensor)
        for op in self.touched[tensor]:
            chip, reader = int(self.plan.placement[op]), self.kernel_of[op]
            at = now if chip == home else begin + self.transfer_seconds(tensor, home, chip)
            there_at[reader] = max(there_at[reader], at)
        if not self.graph.tensor_is_output[tensor]:
            return now
        seconds = self.tensor_bytes[tensor] / self.target.host_out_bytes_per_s
        free_at[-1] = max(now, free_at[-1]) + seconds
        return free_at[-1]

    def host_arrivals(self, stream: list[int]) -> dict[int, float]:
        """kernel -> when its inputs and weights are there, sent in the order they are needed."""
        there_at: dict[int, float] = defaultdict(float)
        now, sent, streamed = 0.0, {}, set()
        for op in map(int, self.plan.order):
            kernel, chip = self.kernel_of[op], int(self.plan.placement[op])
            if chip not in streamed and stream[chip]:
                now += stream[chip] / self.target.host_in_bytes_per_s
                there_at[kernel] = now
            streamed.add(chip)
            for k in self.inputs():
                if op in self.touched[k]:
                    to = 0 if self.parameters.host_multicast else chip
                    if (k, to) not in sent:
                        now += self.tensor_bytes[k] / self.target.host_in_bytes_per_s
                        sent[k, to] = now
                    there_at[kernel] = max(there_at[kernel], sent[k, to])
        return there_at


@cache
def shortest_route(topology, a: int, b: int) -> tuple[int, ...]:
    """The links from chip a to chip b: fewest, then those of lowest number first."""
    if a == b:
        return ()
    if topology.kind == "host_star":
        return (2 * a, 2 * b + 1)
    heap: list[tuple[int, tuple[int, ...], int]] = [(0, (), a)]
    seen = set()
    while heap:
        hops, links, chip = heappop(heap)
        if chip == b:
            return links
        if chip in seen:
            continue
        seen.add(chip)
        for link in range(topology.num_links):
            if topology.link_from[link] == chip:
                heappush(heap, (hops + 1, (*links, link), int(topology.link_to[link])))
    raise ValueError(f"no route from chip {a} to chip {b}")
