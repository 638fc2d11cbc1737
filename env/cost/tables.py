"""Tables of a graph on a target: seconds, bytes and routes, ready for the compiled kernels."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import BoolArray, CodeArray, FloatArray, IntArray, LongArray
from go_opt.common.compiling import uncounted
from go_opt.env.cost.exchanges import costed_exchanges
from go_opt.env.cost.gpu_ops import PATTERN, OpWork, kernel_op_seconds
from go_opt.env.cost.shapes import shaped_op_seconds
from go_opt.env.gpu.forms import GpuKernels
from go_opt.env.target import ChipKind, Target
from go_opt.env.target.kinds import SimulatorParameters
from go_opt.env.target.topology import Topology
from go_opt.errors import TargetError
from go_opt.model.dtypes import DTYPE_BITS, DTYPE_CODE, IS_FLOATING, costed_dtype, size_bytes
from go_opt.model.graph import MATRIX, NO_PRODUCER, STATE, TENSOR_KINDS, WEIGHT, Graph
from go_opt.model.states import READS_ALL

# COPY is a kind besides those of the graph: what a relay writes shares the double buffer of its source.
COPY_TYPE: Final = "RelayCopy"  # type of the ops that stand for relays in an expanded graph
COPY: Final = len(TENSOR_KINDS)


class CostTables(NamedTuple):
    """A graph costed on a target, as flat arrays.

    Axes: ``N`` ops, ``K`` tensors, ``R`` reads, ``D`` chips, ``Q`` chip kinds, ``L``
    links between chips (the host's two are not among them).

    A state is a weight that never moves (its ``tensor_bytes`` are 0, so it never streams), stored once for
    each sequence, and read by all ops that touch it. Its writer reads as many bytes more as it writes. A
    next value that is written in place takes no bytes of its own. Nor does what chips hand over in a
    collective, whose seconds count as measured. A tensor without bytes crosses no link, and takes no time.
    """

    op_s: FloatArray  # [Q, N] flops / reached rate; of GPU kernels with their own traffic
    measured_s: FloatArray  # [Q, N] seconds the op costs exactly, NaN: none
    can_run: BoolArray  # [Q, N] True where the kind may run the op
    tensor_bytes: LongArray  # [K] in the type the tensor is costed in
    stored_bytes: LongArray  # [K] in a chip's memory: whole pages
    page_bytes: int
    tensor_kind: CodeArray  # [K] as in the graph, or COPY; WEIGHT for states
    tensor_producer: IntArray  # [K]
    tensor_is_output: BoolArray  # [K]
    weight_by_size: IntArray  # [W] the weights, the largest first, then by index
    reader_ptr: LongArray  # [K + 1]
    reader_op: IntArray  # [R]
    read_bytes: LongArray  # [R] bytes that the reader touches
    reader_tensor: IntArray  # [R]
    op_read_ptr: LongArray  # [N + 1]
    op_read: IntArray  # [R] reads of each op
    chip_kind: IntArray  # [D]
    sram_bytes: LongArray  # [D]
    stream_buffer_bytes: LongArray  # [D] reserved if weights stream
    stream_sharers: LongArray  # [D] chips of the stage that starts here, if it forwards weights; else 1
    stage_chips: LongArray  # [D] chips of the replicated stage that a chip stands for; else 1
    places_buffers: bool  # activations need addresses; else only their peak bytes must fit
    sram_s_per_byte: FloatArray  # [Q]
    kernel_overhead_s: FloatArray  # [Q]
    dma_setup_s: FloatArray  # [Q] before each transfer
    dependency_s: FloatArray  # [Q] behind each transfer, on the chip that receives
    pays_transfers: BoolArray  # [Q]
    is_ring: bool
    overlap: bool
    route_ptr: LongArray  # [D * D + 1], of pairs (a, b); unused on a ring
    route_link: IntArray  # [...]
    link_from: IntArray  # [L]
    link_to: IntArray  # [L]
    link_s_per_byte: FloatArray  # [L]
    link_latency_s: FloatArray  # [L]
    host_in_s_per_byte: float
    host_out_s_per_byte: float
    host_multicast: bool  # an input that several chips read crosses the host's link once
    weight_prefetch: bool  # weights stream as early as the link allows; else one kernel ahead
    loops: int  # sequences in flight: each begins its next inference when its last has ended; 0: no limit
    sequences: int  # the same if they have states on the chips, which keep them on their replicas; else 0

    @property
    def num_ops(self) -> int:
        return self.op_s.shape[1]

    @property
    def num_chips(self) -> int:
        return len(self.chip_kind)

    @property
    def may_forward(self) -> bool:
        """Whether stages may forward weights: on rings where transfers overlap compute."""
        return self.is_ring and self.overlap and self.num_chips > 1

    @property
    def is_state(self) -> BoolArray:
        """[K] True for states, which stay on their chip."""
        return (self.tensor_kind == WEIGHT) & (self.tensor_bytes == 0) & (self.stored_bytes > 0)

    def with_reads(self, keeps: BoolArray) -> CostTables:
        """The tables without the reads that are False in ``keeps`` [R]; the seconds of ops stay."""
        ends = np.concatenate([[0], np.cumsum(keeps)])
        kept = self.op_read[keeps[self.op_read]]
        return self._replace(
            reader_ptr=ends[self.reader_ptr],
            reader_op=self.reader_op[keeps],
            read_bytes=self.read_bytes[keeps],
            reader_tensor=self.reader_tensor[keeps],
            op_read_ptr=np.concatenate([[0], np.cumsum(keeps[self.op_read])])[self.op_read_ptr],
            op_read=ends[kept].astype(self.op_read.dtype),
        )

    def kernel_floor_s(self) -> FloatArray:
        """[Q, N] seconds of each op as a kernel of its own."""
        bytes_moved = self.op_bytes()
        floor = np.maximum(self.op_s, bytes_moved * self.sram_s_per_byte[:, None])
        floor = floor + self.kernel_overhead_s[:, None]
        return np.where(np.isnan(self.measured_s), floor, self.measured_s)

    def own_s(self) -> FloatArray:
        """[Q, N] seconds of an op without traffic and overhead: measured, or else flops / peak rate."""
        return np.where(np.isnan(self.measured_s), self.op_s, self.measured_s)

    def is_measured(self) -> BoolArray:
        """[N] True for ops with measured seconds on some kind."""
        is_measured: BoolArray = np.count_nonzero(~np.isnan(self.measured_s), axis=0) > 0
        return is_measured

    def op_bytes(self) -> LongArray:
        """[N] bytes each op reads and writes as a kernel of its own."""
        read = np.bincount(self.reader_op, weights=self.read_bytes, minlength=self.num_ops)
        is_written = (np.diff(self.reader_ptr) > 0) | self.tensor_is_output
        written = is_written & (self.tensor_producer != NO_PRODUCER)
        producer, sizes = self.tensor_producer[written], self.tensor_bytes[written]
        return (read + np.bincount(producer, weights=sizes, minlength=self.num_ops)).astype(np.int64)


def read_only(array: IntArray) -> IntArray:
    """A read-only view, as kernels take plans; a copy if the array is not contiguous.

    Numba would compile them again for writeable arrays.
    """
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


@lru_cache(maxsize=16)
def cost_tables(graph: Graph, target: Target) -> CostTables:
    """Cost every op, tensor and route of ``graph`` on ``target``, for the analytical model."""
    return tables_with_effects(graph, target, target.modelled)


def divided_tables(graph: Graph, target: Target, divisible: BoolArray | None) -> CostTables:
    """The tables for bounds: the parts of ops ``divisible`` [N] may fit the chips better than the ops."""
    tables = cost_tables(graph, target)
    if divisible is None:
        return tables
    return _with_op_seconds(graph, target, target.modelled, tables, divisible)


def tables_with_effects(graph: Graph, target: Target, parameters: SimulatorParameters) -> CostTables:
    """The tables with the effects of the simulator that ``parameters`` include.

    Raises:
      TargetError: the target has several nodes.
    """
    if target.num_devices > target.num_chips:
        raise TargetError(
            f"target {target.name!r} has several nodes, which only --objective step of gpt: models plans.",
            field="target",
        )
    dtypes = costed_dtype(graph.tensor_dtype, target.native_dtype, graph.precision)
    sizes = size_bytes(graph.tensor_elements, dtypes)
    link_s_per_byte = (1.0 + parameters.header_share) / target.topology.rate_bytes_per_s
    op_read_ptr, op_read = graph.op_reads
    read_bytes = size_bytes(graph.reader_elements, dtypes[graph.reader_tensor])
    stored = -(-sizes // parameters.page_bytes) * parameters.page_bytes
    if graph.states:
        _keep_states(graph, dtypes, sizes, stored, read_bytes)
    kinds = target.kinds
    stream_buffer_bytes = np.array([kind.stream_buffer_bytes for kind in parameters.kinds], dtype=np.int64)
    figures = [kind.kernels for kind in parameters.kinds]
    tables = CostTables(
        op_s=np.empty((len(kinds), graph.num_ops)),
        measured_s=_per_kind(graph.measured_s, target, graph.num_ops, np.nan),
        can_run=kinds_that_run(graph, target),
        tensor_bytes=sizes,
        stored_bytes=stored,
        page_bytes=parameters.page_bytes,
        tensor_kind=_tensor_kind(graph),
        tensor_producer=graph.tensor_producer.copy(),
        tensor_is_output=graph.tensor_is_output.copy(),
        weight_by_size=_by_size(np.flatnonzero(np.isin(graph.tensor_kind, (WEIGHT, STATE))), sizes),
        reader_ptr=graph.reader_ptr.copy(),
        reader_op=graph.reader_op.copy(),
        read_bytes=read_bytes,
        reader_tensor=graph.reader_tensor,
        op_read_ptr=op_read_ptr,
        op_read=op_read,
        chip_kind=target.chip_kind,
        sram_bytes=target.chip_sram_bytes,
        stream_buffer_bytes=stream_buffer_bytes[target.chip_kind],
        stream_sharers=np.ones(target.num_chips, np.int64),
        stage_chips=np.ones(target.num_chips, np.int64),
        places_buffers=not parameters.fit_by_size,
        sram_s_per_byte=np.array(
            [
                1.0 / (kind.sram_bytes_per_s * (of.memory_share if of else 1.0))
                for kind, of in zip(kinds, figures, strict=True)
            ]
        ),
        # A kernel is launched while the one before it runs.
        kernel_overhead_s=np.array(
            [
                max(kind.kernel_overhead_s, of.start_s if of else 0.0)
                for kind, of in zip(kinds, figures, strict=True)
            ]
        ),
        dma_setup_s=np.array([kind.dma_setup_s for kind in parameters.kinds]),
        dependency_s=np.array([kind.dependency_overhead_s for kind in kinds]),
        pays_transfers=np.array([kind.pays_transfers for kind in kinds]),
        is_ring=target.topology.is_ring,
        overlap=target.overlap,
        route_ptr=target.topology.routes[0],
        route_link=target.topology.routes[1],
        link_from=target.topology.link_from,
        link_to=target.topology.link_to,
        link_s_per_byte=np.where(_star_link_is_free(target), 0.0, link_s_per_byte),
        link_latency_s=np.where(_star_link_is_free(target), 0.0, target.topology.latency_s),
        host_in_s_per_byte=1.0 / target.host_in_bytes_per_s,
        host_out_s_per_byte=1.0 / target.host_out_bytes_per_s,
        host_multicast=parameters.host_multicast,
        weight_prefetch=parameters.weight_prefetch,
        loops=graph.sequences if graph.has_scope("sequence") else 0,
        sequences=graph.sequences if any(state.scope == "sequence" for state in graph.states) else 0,
    )
    return _with_op_seconds(graph, target, parameters, _with_exchanges(graph, target, tables))


def _with_exchanges(graph: Graph, target: Target, tables: CostTables) -> CostTables:
    """The tables with collectives, and no bytes of what they exchange."""
    exchanges = costed_exchanges(graph, target.collectives, tables.tensor_bytes)
    if not exchanges:
        return tables
    sent = sorted({k for _, handed, _ in exchanges for k in handed})
    measured_s = tables.measured_s.copy()
    sizes, stored = tables.tensor_bytes.copy(), tables.stored_bytes.copy()
    for op, _, seconds in exchanges:
        measured_s[:, op] = seconds
    measured_s[:, graph.tensor_producer[sent]] = 0.0
    sizes[sent] = stored[sent] = 0
    read_bytes = np.where(np.isin(tables.reader_tensor, sent), 0, tables.read_bytes)
    return tables._replace(
        measured_s=measured_s, tensor_bytes=sizes, stored_bytes=stored, read_bytes=read_bytes
    )


def _with_op_seconds(
    graph: Graph,
    target: Target,
    parameters: SimulatorParameters,
    tables: CostTables,
    divisible: BoolArray | None = None,
) -> CostTables:
    """The tables with the seconds of ops by the shape of their work; bounds if ops are ``divisible`` [N]."""
    peak_s = _op_seconds(graph, target)
    op_s = shaped_op_seconds(graph, peak_s, parameters.kinds, divisible)
    if any(kind.kernels for kind in parameters.kinds):
        op_s = op_s.copy()
        bits = DTYPE_BITS[costed_dtype(graph.op_dtype, target.native_dtype, graph.precision)]
        num_bytes = tables.op_bytes().astype(np.float64)
    for q, (kind, at) in enumerate(zip(parameters.kinds, target.kinds, strict=True)):
        if kind.kernels is None:
            continue
        with np.errstate(invalid="ignore"):
            work = OpWork(graph.op_flops / peak_s[q], num_bytes, bits / 8.0)
        seconds = kernel_op_seconds(
            graph,
            work,
            GpuKernels(kind.kernels, at.sram_bytes_per_s),
            fuses_attention=PATTERN in target.kernel_patterns,
            divisible=divisible,
            again_s=float(tables.kernel_overhead_s[q]) if len(target.kinds) == 1 else None,
        )
        factor = np.divide(op_s[q], peak_s[q], out=np.ones(graph.num_ops), where=peak_s[q] > 0)
        op_s[q] = np.where(np.isnan(seconds), op_s[q], seconds * factor)
    return tables._replace(op_s=op_s)


def _keep_states(
    graph: Graph,
    dtypes: CodeArray,  # [K] in which tensors are costed
    sizes: LongArray,  # [K] changed in place, as the next two
    stored: LongArray,  # [K]
    read_bytes: LongArray,  # [R]
) -> None:
    """Account for states as :class:`CostTables` says."""
    one = stored.copy()
    for state in graph.states:
        copies = (graph.sequences if state.scope == "sequence" else 1) * state.buffers
        stored[state.read] = copies * max(one[state.read], one[state.next])
        sizes[state.read] = 0
        if state.next == state.read:
            continue
        reads = range(graph.reader_ptr[state.read], graph.reader_ptr[state.read + 1])
        row = next(r for r in reads if graph.reader_op[r] == graph.tensor_producer[state.next])
        if state.in_place and graph.op_types[graph.reader_op[row]] not in READS_ALL:
            read_bytes[row] = 0
        read_bytes[row] += size_bytes(np.array([state.written]), dtypes[[state.next]])[0]
        if state.in_place:
            sizes[state.next] = stored[state.next] = 0


def kinds_that_run(graph: Graph, target: Target) -> BoolArray:
    """[Q, N] True where the kind may run the op, by its type and by the graph's costs."""
    can_run = _per_kind(graph.excluded, target, graph.num_ops, 0.0) == 0.0
    for q, kind in enumerate(target.kinds):
        if kind.op_types or kind.not_op_types:
            can_run[q] &= graph.has_type(kind.runs) | graph.has_type(COPY_TYPE.__eq__)
    return can_run


def why_not_on(graph: Graph, kind: ChipKind, op: int) -> str:
    """Why chips of ``kind`` do not run the op, for a sentence such as "'dla' runs no LSTM"."""
    if not kind.runs(graph.op_types[op]):
        return f"{kind.name!r} runs no {graph.op_types[op]}"
    return f"{kind.name!r} by the costs of the op"


def _tensor_kind(graph: Graph) -> CodeArray:
    kind = np.where(graph.tensor_kind == STATE, WEIGHT, graph.tensor_kind)
    copies = [op for op, op_type in enumerate(graph.op_types) if op_type == COPY_TYPE]
    kind[np.isin(graph.tensor_producer, copies)] = COPY
    return kind


def _by_size(tensors: LongArray, sizes: LongArray) -> IntArray:
    return tensors[np.argsort(-sizes[tensors], kind="stable")].astype(np.int32)


def _op_seconds(graph: Graph, target: Target) -> FloatArray:
    is_native = IS_FLOATING[graph.op_dtype] & (graph.precision == "native")
    dtype = np.where(is_native, DTYPE_CODE[target.native_dtype], graph.op_dtype)
    seconds = np.empty((len(target.kinds), graph.num_ops))
    for q, kind in enumerate(target.kinds):
        matrix_rate = kind.rates(kind.matrix_flops_per_s, target.native_dtype)[dtype]
        vector_rate = kind.rates(kind.vector_flops_per_s, target.native_dtype)[dtype]
        rate = np.where(graph.op_class == MATRIX, matrix_rate, vector_rate)
        for op_type, by_dtype in kind.flops_per_s_by_op_type.items():
            is_of_type = graph.has_type(op_type.__eq__)
            rate = np.where(is_of_type, kind.rates(by_dtype, target.native_dtype)[dtype], rate)
        seconds[q] = graph.op_flops / rate
    return seconds


def _per_kind(by_kind: Mapping[str, NDArray], target: Target, num_ops: int, missing: float) -> FloatArray:
    rows = [by_kind.get(kind.name, np.full(num_ops, missing)) for kind in target.kinds]
    return np.array(rows, dtype=np.float64)


def _star_link_is_free(target: Target) -> BoolArray:
    """[L] True for the links of a host star whose one chip does not pay for transfers."""
    topology: Topology = target.topology
    if topology.kind != "host_star":
        return np.zeros(topology.num_links, dtype=np.bool_)
    pays = np.array([kind.pays_transfers for kind in target.kinds])[target.chip_kind]
    return ~pays[np.maximum(topology.link_from, topology.link_to)]


# Stands for infinity if there is no route; finite, so that zero bytes take zero seconds.
NO_ROUTE_S_PER_BYTE = 1e30


def hop_seconds_per_byte(tables: CostTables) -> FloatArray:
    """[D] seconds per byte from chip d to chip d + 1 on the slowest link; the last is zero."""
    num_chips = tables.num_chips
    hops = np.zeros(num_chips)
    for d in range(num_chips - 1):
        if tables.is_ring:
            hops[d] = tables.link_s_per_byte[d]
            continue
        pair = d * num_chips + d + 1
        links = tables.route_link[tables.route_ptr[pair] : tables.route_ptr[pair + 1]]
        hops[d] = tables.link_s_per_byte[links].max() if len(links) else NO_ROUTE_S_PER_BYTE
    return hops


@uncounted
def transfer_s(tables: CostTables, source: int, destination: int, size: int) -> float:
    """Seconds from one chip to another alone: set-up, hop latencies, the slowest link, the dependency.

    No bytes take no time: a collective has their exchange (:mod:`go_opt.env.cost.exchanges`).
    """
    if source == destination or size == 0:
        return 0.0
    num_chips = len(tables.chip_kind)
    setup_s = tables.dma_setup_s[tables.chip_kind[source]]
    setup_s += tables.dependency_s[tables.chip_kind[destination]]
    if tables.is_ring:
        hops = (destination - source) % num_chips
        return setup_s + hops * tables.link_latency_s[0] + size * tables.link_s_per_byte[0]
    pair = source * num_chips + destination
    latency_s = 0.0
    slowest = 0.0
    for i in range(tables.route_ptr[pair], tables.route_ptr[pair + 1]):
        latency_s += tables.link_latency_s[tables.route_link[i]]
        slowest = max(slowest, tables.link_s_per_byte[tables.route_link[i]])
    return setup_s + latency_s + size * slowest


# Deviations below this share of the largest value are rounding errors.
_LEAST_SPREAD: Final = 1e-12


def bytes_out(tables: CostTables) -> NDArray:
    """[N] bytes of all tensors that each op writes."""
    produced = tables.tensor_producer != NO_PRODUCER
    producer, sizes = tables.tensor_producer[produced], tables.tensor_bytes[produced]
    return np.bincount(producer, weights=sizes, minlength=tables.num_ops)


def weight_bytes(tables: CostTables) -> NDArray:
    """[N] bytes of the weights that each op reads, also of parts that it does not touch."""
    is_weight = tables.tensor_kind[tables.reader_tensor] == WEIGHT
    reader, tensor = tables.reader_op[is_weight], tables.reader_tensor[is_weight]
    return np.bincount(reader, weights=tables.tensor_bytes[tensor], minlength=tables.num_ops)


def smallest_op_s(tables: CostTables) -> FloatArray:
    """[N] seconds of each op as a kernel of its own, on the fastest kind that may run it."""
    floor_s = tables.kernel_floor_s()
    may_run = tables.can_run | ~tables.can_run.any(axis=0)
    least_s: FloatArray = np.where(may_run, floor_s, np.inf).min(axis=0)
    return least_s


def standardise(columns: FloatArray) -> tuple[NDArray, NDArray, NDArray]:
    """``columns`` [N, F] with mean 0 and deviation 1, the means [F] and the deviations [F].

    A column that is the same for all ops becomes zero; scaling would amplify its rounding errors.
    """
    mean, spread = columns.mean(axis=0), columns.std(axis=0)
    spread = np.where(spread > _LEAST_SPREAD * np.abs(columns).max(axis=0), spread, 0.0)
    return (columns - mean) * (spread > 0) / np.where(spread > 0, spread, 1.0), mean, spread
