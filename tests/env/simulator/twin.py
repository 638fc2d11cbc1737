"""A slow, obvious simulator: every kernel, transfer and request an object and an event of its own.

Written from the descriptions of the engine, with none of its tables, stages or records:

* A chip runs its kernels in the plan's order, inference after inference; of the chips of a replicated
  stage each runs every so many-th, from its place among them on. Where sequences have states, inference s
  is of sequence s mod S, and each chip runs every so many-th sequence. A kernel starts
  once its inference is admitted, what it reads first has arrived, and each tensor it
  sends away has an output slot free; it ends once its streamed weights are there too.
* At its end it frees the buffers it read last and hands over what it made: a tensor for
  other chips waits for a buffer at each reader with credit, then for a DMA engine, which
  sets up and is taken until the tensor has left over all its first links. A chip keeps each
  tensor's buffers for the next inferences it will run.
* A link serves first come, first served. The next link gets a tensor once a packet of it
  is there, and passes its last byte on no earlier than it comes. Where the reader has no credit and
  no buffer free, the tensor stays at the head of the last link's queue.
* The host sends the oldest inference first, then by tensor, weights last. What it
  receives it takes in the order the chips hand it over, and an inference is complete after all before it.
* Weights come one streaming kernel ahead, or as far ahead as inferences are admitted.
* ``2 * chips used + 4`` inferences are under way at most, 8 a chip without a limit of buffers; and no more
  than there are sequences.
* Weights stream as ``memory_twin.py`` says.
* Where transfers do not overlap compute, a chip spends their time before its first kernel; links take none.
* In a stage that forwards weights the host sends them to the first chip, and each chip to the next, in
  chunks of half a stream buffer, two of which may be on their way to a chip. With weights one kernel
  ahead, a kernel that streams then starts no sooner than the next chip has the weights of those before it,
  but for the last.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count, islice
from math import lcm

import numpy as np

from go_opt.common.arrays import FloatArray
from go_opt.env import Target
from go_opt.env.target.kinds import KindParameters
from go_opt.model.graph import INPUT, STATE, WEIGHT, Graph
from go_opt.model.plan import Plan
from tests.env.memory_twin import chip_memory
from tests.env.numpy_twin import Twin


@dataclass(frozen=True)
class Stage:
    """Where an inference runs: on one of some consecutive chips, in turn."""

    first: int
    chips: int
    sequences: int = 0  # 0: there are none

    def chip(self, inference: int) -> int:
        one = inference % self.sequences if self.sequences else inference
        return self.first + one % self.chips

    def turn(self, inference: int) -> int:
        """How many earlier inferences run on the same chip."""
        return sum(self.chip(i) == self.chip(inference) for i in range(inference))

    def inference(self, chip: int, turn: int) -> int:
        """The inference of a turn of a chip."""
        return next(islice((i for i in count() if self.chip(i) == chip), turn, None))

    def after(self, inference: int) -> int:
        """The next one on the same chip."""
        return self.inference(self.chip(inference), self.turn(inference) + 1)

    @property
    def cycle(self) -> int:
        """Inferences until the chips take the same turns again."""
        return self.sequences if self.sequences % self.chips else self.chips


@dataclass(eq=False)
class Reader:
    """A stage that a tensor goes to."""

    stage: Stage
    first: int  # kernel that needs it first
    last: int  # kernel that needs it last
    has_credit: bool = True
    arrived: set[int] = field(default_factory=set)  # inferences
    freed: set[int] = field(default_factory=set)
    in_flight: Counter[int] = field(default_factory=Counter)  # by chip: arrived, or on the last link


@dataclass(eq=False)
class Tensor:
    """What leaves a stage or the host."""

    number: int
    tensor: int  # of the graph
    size_bytes: int
    stage: Stage  # of chip -1: the host
    maker: int  # kernel, -1: the host
    readers: list[Reader]  # none: it goes to the host
    made: Counter[int] = field(default_factory=Counter)  # by chip: inferences, as below
    granted: Counter[int] = field(default_factory=Counter)  # handed to the DMA engines, or asked of the host
    sent: Counter[int] = field(default_factory=Counter)

    def next_to_grant(self, chip: int) -> int:
        return self.stage.inference(chip, self.granted[chip])


@dataclass
class Tree:
    """The way of a tensor of one inference."""

    first_links: list[int] = field(default_factory=list)
    next_links: dict[int, list[int]] = field(default_factory=dict)  # link -> the links after it
    ends_at: dict[int, Reader] = field(default_factory=dict)  # link -> the reader it leads to


@dataclass(eq=False)
class Weights:
    """What one kernel waits for from the host."""

    kernel: int
    size_bytes: int
    next: int  # inference to ask for
    source: Weights | None = None  # those of the chip before, where that forwards them
    sink: Weights | None = None  # those of the chip behind, likewise
    chip: int = 0
    asked: set[int] = field(default_factory=set)
    chunks: list[int] = field(default_factory=list)  # bytes of each
    here: list[tuple[int, int]] = field(default_factory=list)  # (inference, chunk) that have come
    begun: int = 0  # chunks of all inferences that the link to the chip has begun with
    is_on_link: bool = False
    arrived: set[int] = field(default_factory=set)


@dataclass(eq=False)
class Leg:
    """One tensor of one inference on its way over one link."""

    tensor: Tensor | Weights
    inference: int
    last_byte_s: float  # when its last byte is at the link; of weights, the number of the chunk


@dataclass(eq=False)
class Chip:
    number: int
    stage: Stage
    kernels: list[int]
    parameters: KindParameters
    inference: int
    weights: dict[int, Weights]  # by kernel: what has no room and streams
    place: int = 0
    is_running: bool = False
    waits_for: Weights | None = None
    begun: int = 0  # kernels that wait for weights that are forwarded
    received: int = 0  # such weights
    free_engines: int = 0
    ready: deque[tuple[Tensor, int]] = field(default_factory=deque)


def is_forwarded(weights: Weights) -> bool:
    return weights.source is not None or weights.sink is not None


class SlowSimulator:
    """One plan on one package; :meth:`run` fills ``completion_s`` and ``chip_end_s``."""

    def __init__(self, graph: Graph, target: Target, plan: Plan, num_rounds: int) -> None:
        self.graph, self.target, self.plan = graph, target, plan
        self.costs = Twin(graph, target, plan, target.simulator)
        self.rounds, self.parameters = num_rounds, target.simulator
        self.buffers = self.parameters.buffers or float("inf")
        pairs = zip(plan.placement.tolist(), plan.replication.tolist(), strict=True)
        self.sequences = graph.sequences if graph.has_scope("sequence") else 0
        self.stages = {first: Stage(first, chips, self.sequences) for first, chips in pairs}
        self.chips = self.make_chips()
        self.tensors = self.make_tensors()
        self.transfers_s = [0.0 if target.overlap else self.occupied_s(chip.number) for chip in self.chips]
        self.limit_credit()
        self.queues: dict[int, deque[Leg]] = defaultdict(deque)
        self.link_is_busy: dict[int, bool] = defaultdict(bool)
        self.requests: list[tuple[int, int, Tensor | Weights]] = []
        self.to_leave: dict[tuple[int, int], int] = {}  # first links a tensor has still to leave over
        self.host_is_sending = False
        self.host_out_free_s = 0.0
        each = 2 if self.parameters.buffers else 8
        self.window = each * sum(bool(chip.kernels) for chip in self.chips) + 4
        self.window = min(self.window, self.sequences or self.window)
        self.admitted = min(self.window, num_rounds)
        self.open_parts = [len(self.stages) + sum(not t.readers for t in self.tensors)] * num_rounds
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.serial = count()
        self.now_s = 0.0
        self.completed = 0
        self.completion_s = np.zeros(num_rounds)
        self.chip_end_s = np.zeros((len(self.chips), num_rounds))  # by the turns of the chip
        self.carried: dict[int, list[tuple[int, float]]] = defaultdict(list)  # link -> (bytes, end)

    # ------------------------------------------------------------------ what goes where

    def make_chips(self) -> list[Chip]:
        stage_of = {stage.chip(i): stage for stage in self.stages.values() for i in range(stage.chips)}
        chips = []
        for d, kind in enumerate(self.target.chip_kind):
            stage = stage_of.get(d, Stage(d, 1))
            kernels = [m for m, kernel in enumerate(self.costs.kernels) if kernel.chip == stage.first]
            parameters = self.parameters.kinds[kind]
            inference = d - stage.first
            weights: dict[int, Weights] = {}
            memory = chip_memory(self.costs, stage.first)
            for kernel, touched, _ in memory.streams:
                weights.setdefault(kernel, Weights(kernel, 0, inference, chip=d)).size_bytes += touched
            weights = dict(sorted(weights.items()))
            buffer = self.parameters.kinds[self.target.chip_kind[stage.first]].stream_buffer_bytes
            for each in weights.values():
                size = each.size_bytes
                chunk = max(buffer // 2 if buffer else size, 1)
                each.chunks = [min(chunk, size - begin) for begin in range(0, size, chunk)] or [0]
            chips.append(Chip(d, stage, kernels, parameters, inference, weights))
            chips[-1].free_engines = parameters.dma_engines or 10**9
            if stage.first in self.plan.forwards and d > stage.first:
                for kernel in filter(memory.may_forward, weights):
                    weights[kernel].source = chips[d - 1].weights[kernel]
                    chips[d - 1].weights[kernel].sink = weights[kernel]
        return chips

    def make_tensors(self) -> list[Tensor]:
        graph, costs = self.graph, self.costs
        parts: list[tuple[int, int, list[Reader]]] = []  # tensor, kernel that makes it, where it goes
        for k in range(graph.num_tensors):
            if graph.tensor_kind[k] in (WEIGHT, STATE):
                continue
            is_input = bool(graph.tensor_kind[k] == INPUT)
            maker = -1 if is_input else costs.kernel_of[int(graph.tensor_producer[k])]
            kernels: dict[int, list[int]] = {}
            for kernel in (costs.kernel_of[op] for op in costs.touched[k]):
                if is_input or costs.kernels[kernel].chip != costs.kernels[maker].chip:
                    kernels.setdefault(costs.kernels[kernel].chip, []).append(kernel)
            readers = [Reader(self.stages[chip], min(ms), max(ms)) for chip, ms in kernels.items()]
            if is_input and not self.parameters.host_multicast:
                parts += [(k, maker, [reader]) for reader in readers]
            elif readers:
                parts.append((k, maker, readers))
            if not is_input and graph.tensor_is_output[k]:
                parts.append((k, maker, []))
        return [
            Tensor(i, k, costs.tensor_bytes[k], self.stage_of(maker), maker, readers)
            for i, (k, maker, readers) in enumerate(parts)
        ]

    def occupied_s(self, number: int) -> float:
        """Without overlap: what a chip that is no replica spends on the transfers of an inference."""
        stream = [sum(each.size_bytes for each in chip.weights.values()) for chip in self.chips]
        return self.costs.transfers_of(number, self.costs.link_seconds(stream), stream[number])

    def stage_of(self, kernel: int) -> Stage:
        return Stage(-1, 1) if kernel < 0 else self.stages[self.costs.kernels[kernel].chip]

    def tree(self, tensor: Tensor, inference: int) -> Tree:
        """The routes to all readers laid over each other."""
        tree = Tree()
        for reader in tensor.readers if tensor.maker >= 0 else []:
            route = self.costs.route(tensor.stage.chip(inference), reader.stage.chip(inference))
            before = tree.first_links
            for link in route:
                if link not in before:
                    before.append(link)
                before = tree.next_links.setdefault(link, [])
            tree.ends_at[route[-1]] = reader
        return tree

    def limit_credit(self) -> None:
        """Take credit from the dependencies of stages that the target's triangle rule forbids."""
        between = [t for t in self.tensors if t.maker >= 0]
        after: dict[int, set[int]] = defaultdict(set)
        for tensor in between:
            after[tensor.stage.first] |= {reader.stage.first for reader in tensor.readers}

        def reaches(a: int, b: int) -> bool:
            return b in after[a] or any(reaches(c, b) for c in after[a])

        for tensor in between:
            for reader in tensor.readers:
                a, b = tensor.stage.first, reader.stage.first
                others = after[a] - {b}
                forbidden = {
                    "off": lambda a, b, others: False,
                    "adjacent": lambda a, b, others: b != a + self.stages[a].chips,
                    "three_chip": lambda a, b, others: any(b in after[c] for c in others),
                    "longest_path": lambda a, b, others: any(reaches(c, b) for c in others),
                }[self.target.constraints.triangle]
                reader.has_credit = not forbidden(a, b, others)

    # ------------------------------------------------------------------ running

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        heappush(self.events, (time_s, next(self.serial), action))

    def run(self) -> None:
        for tensor in self.tensors:
            if tensor.maker < 0:
                self.ask_input(tensor)
        if self.parameters.weight_prefetch:
            self.ask_all_weights()
        else:
            for chip in self.chips:
                self.ask_weights_after(chip, len(chip.kernels) - 1)
        self.serve_host()
        for chip in self.chips:
            self.try_start(chip)
        while self.events:
            self.now_s, _, action = heappop(self.events)
            action()

    def try_start(self, chip: Chip) -> None:
        if chip.is_running or not chip.kernels or chip.inference >= self.admitted:
            return
        kernel = chip.kernels[chip.place]
        if not self.has_forwarded(chip, chip.weights.get(kernel)):
            return
        for tensor in self.tensors:
            for reader in tensor.readers:
                if reader.first == kernel and chip.inference not in reader.arrived:
                    return
            if tensor.maker == kernel and tensor.made[chip.number] - tensor.sent[chip.number] >= self.buffers:
                return
        chip.is_running = True
        chip.begun += kernel in chip.weights and is_forwarded(chip.weights[kernel])
        if kernel in chip.weights and not self.parameters.weight_prefetch:
            self.ask_weights_after(chip, chip.place)
            self.serve_host()
        transfers_s = 0.0 if chip.place else self.transfers_s[chip.number]
        end_s = self.now_s + transfers_s + self.costs.kernels[kernel].seconds
        self.at(end_s, lambda: self.end_kernel(chip))

    def end_kernel(self, chip: Chip) -> None:
        weights = chip.weights.get(chip.kernels[chip.place])
        if weights is not None and chip.inference not in weights.arrived:
            chip.waits_for = weights
            return
        chip.waits_for, chip.is_running = None, False
        kernel, inference = chip.kernels[chip.place], chip.inference
        for tensor in self.tensors:
            for reader in tensor.readers:
                if reader.last == kernel:
                    self.free_buffer(tensor, reader, inference)
        for tensor in (t for t in self.tensors if t.maker == kernel):
            tensor.made[chip.number] += 1
            if tensor.readers:
                self.grant(tensor, chip)
            else:
                self.send_to_host(tensor, chip)
        chip.place = (chip.place + 1) % len(chip.kernels)
        if chip.place == 0:
            self.chip_end_s[chip.number, chip.stage.turn(inference)] = self.now_s
            chip.inference = chip.stage.after(inference)
            self.finish_part(inference)
        self.try_start(chip)

    def finish_part(self, inference: int) -> None:
        """A chip or an output is through; for each that is complete another inference is admitted."""
        self.open_parts[inference] -= 1
        while self.completed < self.rounds and not self.open_parts[self.completed]:
            self.completion_s[self.completed] = self.now_s
            self.completed += 1
            if self.admitted < self.rounds:
                self.admit()

    def admit(self) -> None:
        self.admitted += 1
        for tensor in self.tensors:
            if tensor.maker < 0:
                self.ask_input(tensor)
        if self.parameters.weight_prefetch:
            self.ask_all_weights()
        self.serve_host()
        for chip in self.chips:
            self.try_start(chip)

    # ------------------------------------------------------------------ between chips

    def has_room(self, tensor: Tensor, inference: int) -> bool:
        """Whether each reader is through with the inference that had the buffer before."""
        for reader in tensor.readers:
            turn = reader.stage.turn(inference) - self.buffers
            if reader.has_credit and turn >= 0:
                had = reader.stage.inference(reader.stage.chip(inference), int(turn))
                if had not in reader.freed:
                    return False
        return True

    def free_buffer(self, tensor: Tensor, reader: Reader, inference: int) -> None:
        reader.freed.add(inference)
        if tensor.maker < 0:
            self.ask_input(tensor)
            self.serve_host()
        elif reader.has_credit:
            for replica in range(tensor.stage.chips):
                self.grant(tensor, self.chips[tensor.stage.first + replica])
        else:
            for link, end in self.tree(tensor, inference).ends_at.items():
                if end is reader:
                    self.serve_link(link)

    def grant(self, tensor: Tensor, chip: Chip) -> None:
        d = chip.number
        while tensor.granted[d] < tensor.made[d] and self.has_room(tensor, tensor.next_to_grant(d)):
            inference = tensor.next_to_grant(d)
            tensor.granted[d] += 1
            if tensor.size_bytes:
                chip.ready.append((tensor, inference))
                continue
            tensor.sent[d] += 1  # exchanged in a collective
            for reader in tensor.readers:
                self.at(self.now_s, partial(self.arrive, reader, inference))
            self.at(self.now_s, partial(self.try_start, chip))
        self.start_engines(chip)

    def start_engines(self, chip: Chip) -> None:
        while chip.free_engines and chip.ready:
            chip.free_engines -= 1
            tensor, inference = chip.ready.popleft()
            begin_s = self.now_s + chip.parameters.dma_setup_s
            first_links = self.tree(tensor, inference).first_links
            self.to_leave[tensor.number, inference] = len(first_links)
            for link in first_links:
                self.enter_at(begin_s, link, Leg(tensor, inference, begin_s))

    def enter_at(self, time_s: float, link: int, leg: Leg) -> None:
        def enter() -> None:
            self.queues[link].append(leg)
            self.serve_link(link)

        self.at(time_s, enter)

    def serve_link(self, link: int) -> None:
        """Send the head of the queue, if the link is free and the reader may take it."""
        if self.link_is_busy[link] or not self.queues[link]:
            return
        leg = self.queues[link][0]
        if isinstance(leg.tensor, Weights):
            self.queues[link].popleft()
            self.link_is_busy[link] = True
            self.send_chunk(link, leg)
            return
        tensor, inference = leg.tensor, leg.inference
        tree = self.tree(tensor, inference)
        reader = tree.ends_at.get(link)
        if reader is not None:
            chip = reader.stage.chip(inference)
            freed = sum(reader.stage.chip(i) == chip for i in reader.freed)
            if not reader.has_credit and reader.in_flight[chip] - freed >= self.buffers:
                return
            reader.in_flight[chip] += 1
        self.queues[link].popleft()
        self.link_is_busy[link] = True
        s_per_byte = self.s_per_byte(link)
        latency_s = 0.0 if self.costs.is_free(link) else float(self.target.topology.latency_s[link])
        packet_bytes = min(tensor.size_bytes, self.parameters.packet_bytes)
        free_s = self.now_s + tensor.size_bytes * s_per_byte
        end_s = max(free_s, leg.last_byte_s)
        for following in tree.next_links[link]:
            first_s = self.now_s + packet_bytes * s_per_byte + latency_s
            self.enter_at(first_s, following, Leg(tensor, inference, end_s + latency_s))
        if reader is not None:
            kind = self.target.kinds[self.target.chip_kind[reader.stage.chip(inference)]]
            self.at(end_s + latency_s + kind.dependency_overhead_s, lambda: self.arrive(reader, inference))
        if link in tree.first_links:
            self.at(end_s, lambda: self.leave_chip(leg))
        self.at(free_s, lambda: self.free_link(link, tensor))

    def free_link(self, link: int, tensor: Tensor | Weights) -> None:
        self.link_is_busy[link] = False
        self.carried[link].append((tensor.size_bytes, self.now_s))
        self.serve_link(link)

    def leave_chip(self, leg: Leg) -> None:
        tensor, chip = leg.tensor, self.chips[leg.tensor.stage.chip(leg.inference)]
        self.to_leave[tensor.number, leg.inference] -= 1
        if not self.to_leave[tensor.number, leg.inference]:
            tensor.sent[chip.number] += 1
            chip.free_engines += 1
            self.start_engines(chip)
            self.try_start(chip)

    def arrive(self, reader: Reader, inference: int) -> None:
        reader.arrived.add(inference)
        self.try_start(self.chips[reader.stage.chip(inference)])

    # ------------------------------------------------------------------ the host

    def ask_input(self, tensor: Tensor) -> None:
        while tensor.granted[-1] < self.admitted and self.has_room(tensor, tensor.granted[-1]):
            heappush(self.requests, (tensor.granted[-1], tensor.number, tensor))
            tensor.granted[-1] += 1

    def has_forwarded(self, chip: Chip, weights: Weights | None) -> bool:
        """Whether the next chip has the weights of all kernels before, if it is to have these."""
        if weights is None or weights.sink is None or self.parameters.weight_prefetch:
            return True
        return chip.inference + 1 >= self.rounds or self.chips[chip.number + 1].received >= chip.begun - 1

    def forward(self, weights: Weights) -> None:
        """Queue the next chunk for the link to the chip, if it is asked for and at the chip before."""
        assert weights.source is not None
        stage = self.chips[weights.chip].stage
        turn, chunk = divmod(weights.begun, len(weights.chunks))
        inference = stage.inference(weights.chip, turn)
        is_asked = inference in weights.asked or self.parameters.weight_prefetch
        if weights.is_on_link or inference >= self.rounds or not is_asked:
            return
        if (inference - 1, chunk) not in weights.source.here or weights.begun - len(weights.here) >= 2:
            return
        weights.begun += 1
        weights.is_on_link = True
        link = weights.chip - 1
        self.queues[link].append(Leg(weights, inference, float(chunk)))
        self.serve_link(link)

    def send_chunk(self, link: int, leg: Leg) -> None:
        """A link begins with a chunk of what one chip forwards to the next."""
        weights, chunk = leg.tensor, int(leg.last_byte_s)
        size_bytes = weights.chunks[chunk]
        latency_s = 0.0 if self.costs.is_free(link) else float(self.target.topology.latency_s[link])
        free_s = self.now_s + size_bytes * self.s_per_byte(link)

        def left() -> None:
            weights.is_on_link = self.link_is_busy[link] = False
            self.carried[link].append((size_bytes, self.now_s))
            self.forward(weights)
            self.serve_link(link)

        self.at(free_s, left)
        self.at(free_s + latency_s, lambda: self.chunk_came(weights, leg.inference, chunk))

    def chunk_came(self, weights: Weights, inference: int, chunk: int) -> None:
        weights.here.append((inference, chunk))
        if weights.sink is not None:
            self.forward(weights.sink)
        is_last = chunk + 1 == len(weights.chunks)
        if weights.source is not None:
            self.forward(weights)
            if is_last:
                self.weights_came(weights, inference)
        elif not is_last:
            self.next_chunk_of_host(weights, inference, chunk + 1)

    def next_chunk_of_host(self, weights: Weights, inference: int, chunk: int) -> None:
        seconds = weights.chunks[chunk] * self.s_per_byte(self.costs.num_links)
        self.at(self.now_s + seconds, lambda: self.chunk_came(weights, inference, chunk))

    def weights_came(self, weights: Weights, inference: int) -> None:
        weights.arrived.add(inference)
        chip = self.chips[weights.chip]
        chip.received += is_forwarded(weights)
        if chip.waits_for is weights:
            self.end_kernel(chip)
        if weights.source is not None:
            self.try_start(self.chips[weights.chip - 1])

    def ask_weights(self, chip: Chip, weights: Weights) -> None:
        if weights.source is not None:
            weights.asked.add(weights.next)
            weights.next = chip.stage.after(weights.next)
            self.forward(weights)
            return
        heappush(self.requests, (weights.next, len(self.tensors) + weights.kernel, weights))
        weights.next = chip.stage.after(weights.next)

    def ask_all_weights(self) -> None:
        for chip in self.chips:
            for weights in chip.weights.values():
                while weights.next < self.admitted:
                    self.ask_weights(chip, weights)

    def ask_weights_after(self, chip: Chip, place: int) -> None:
        """The next that stream, of this inference or the next one."""
        for kernel in chip.kernels[place + 1 :] + chip.kernels[: place + 1]:
            if kernel in chip.weights:
                if chip.weights[kernel].next < self.rounds:
                    self.ask_weights(chip, chip.weights[kernel])
                return

    def serve_host(self) -> None:
        if self.host_is_sending or not self.requests:
            return
        self.host_is_sending = True
        inference, _, subject = heappop(self.requests)
        s_per_byte = self.s_per_byte(self.costs.num_links)
        seconds = subject.size_bytes * s_per_byte
        if isinstance(subject, Weights) and subject.sink is not None:
            self.next_chunk_of_host(subject, inference, 0)
        self.at(self.now_s + seconds, lambda: self.served(subject, inference))

    def served(self, subject: Tensor | Weights, inference: int) -> None:
        self.host_is_sending = False
        self.carried[self.costs.num_links].append((subject.size_bytes, self.now_s))
        self.serve_host()
        if isinstance(subject, Weights):
            self.weights_came(subject, inference)
        else:
            for reader in subject.readers:
                self.arrive(reader, inference)

    def send_to_host(self, tensor: Tensor, chip: Chip) -> None:
        inference = chip.inference
        start_s = max(self.now_s + chip.parameters.dma_setup_s, self.host_out_free_s)
        self.host_out_free_s = start_s + tensor.size_bytes * self.s_per_byte(self.costs.num_links + 1)

        def taken() -> None:
            tensor.sent[chip.number] += 1
            self.carried[self.costs.num_links + 1].append((tensor.size_bytes, self.now_s))
            self.finish_part(inference)
            self.try_start(chip)

        self.at(self.host_out_free_s, taken)

    def link_end_s(self) -> FloatArray:
        """[L + 2, cycles] when each link has carried the bytes of so many cycles; 0: never."""
        end_s = np.zeros((self.costs.num_links + 2, self.rounds))
        for link in range(len(end_s)):
            share = sum(self.bytes_of(link, inference) for inference in range(self.cycle(link)))
            done = 0
            for size_bytes, time_s in self.carried[link]:
                before, done = done, done + size_bytes
                if share and done // share > before // share:
                    rest_s = (done % share) * self.s_per_byte(link)
                    end_s[link, done // share - 1] = time_s - rest_s
        return end_s

    def cycle(self, link: int) -> int:
        """Inferences until a link carries the same again: on rings only those inside a stage take turns."""
        if link < self.costs.num_links and not self.target.topology.is_ring:
            return lcm(*(stage.cycle for stage in self.stages.values()))
        if link == self.costs.num_links:
            forwarding = (c.stage.chips for c in self.chips if any(map(is_forwarded, c.weights.values())))
            return lcm(*forwarding)
        inside = [s.cycle for s in self.stages.values() if s.first <= link < s.first + s.chips - 1]
        return inside[0] if inside else 1

    def bytes_of(self, link: int, inference: int) -> int:
        if link == self.costs.num_links:
            turns = (chip for chip in self.chips if chip.stage.chip(inference) == chip.number)
            streamed = sum(w.size_bytes for chip in turns for w in chip.weights.values() if w.source is None)
            return streamed + sum(tensor.size_bytes for tensor in self.tensors if tensor.maker < 0)
        if link == self.costs.num_links + 1:
            return sum(tensor.size_bytes for tensor in self.tensors if not tensor.readers)
        crossing = (t for t in self.tensors if link in self.tree(t, inference).next_links)
        weights = self.chips[link + 1].weights if link + 1 < len(self.chips) else {}
        is_turn = bool(weights) and self.chips[link + 1].stage.chip(inference) == link + 1
        forwarded = sum(w.size_bytes for w in weights.values() if w.source is not None) * is_turn
        return sum(tensor.size_bytes for tensor in crossing) + forwarded

    def s_per_byte(self, link: int) -> float:
        if not self.target.overlap:
            return 0.0
        if link == self.costs.num_links:
            return 1.0 / self.target.host_in_bytes_per_s
        if link == self.costs.num_links + 1:
            return 1.0 / self.target.host_out_bytes_per_s
        return self.costs.seconds_per_byte(link)

    def stopped(self) -> list[tuple[int, int, int]]:
        """(link, tensor, inference) at the head of each queue, once nothing moves any more."""
        return [
            (link, queue[0].tensor.tensor, queue[0].inference)
            for link, queue in sorted(self.queues.items())
            if queue
        ]
