"""Relays as the copies they are: a plan with relays becomes one without, of a graph with copy ops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from go_opt.dtypes import DTYPES
from go_opt.env.target import Target
from go_opt.graph import NO_PRODUCER, OP_CLASSES, TENSOR_KINDS, Graph
from go_opt.graph_builder import GraphBuilder
from go_opt.plan import Plan, Relay

COPY_TYPE = "RelayCopy"


def relay_name(tensor: str, chip: int) -> str:
    """The op, and the tensor it writes, that copies ``tensor`` on ``chip``."""
    return f"{tensor}/relay {chip}"


def with_relays(graph: Graph, target: Target, plan: Plan, relays: Sequence[Relay]) -> tuple[Graph, Plan]:
    """The graph and the plan with a copy on every relay chip (design section 8).

    A copy is a ``data_movement`` kernel of its own that reads and writes the tensor once.
    A reader, and the next copy, takes the tensor from the last copy on a chip before its own.
    """
    chips_of = {relay.tensor: tuple(sorted(relay.chips)) for relay in relays}
    expanded = _with_copies(graph, plan.placement, chips_of)
    placement = np.empty(expanded.num_ops, np.int32)
    group = np.arange(expanded.num_ops, dtype=np.int32) + graph.num_ops  # copies stand alone
    index = expanded.op_index
    for op, name in enumerate(graph.op_names):
        placement[index[name]] = plan.placement[op]
        group[index[name]] = plan.fusion_group[op]
    order = []
    out_ptr, outputs = graph.op_outputs
    for op in plan.order:
        order.append(index[graph.op_names[op]])
        for k in outputs[out_ptr[op] : out_ptr[op + 1]]:
            for chip in chips_of.get(graph.tensor_names[k], ()):
                copy = index[relay_name(graph.tensor_names[k], chip)]
                placement[copy] = chip
                order.append(copy)
    return expanded, Plan.create(
        expanded,
        target.source,
        target.fingerprint,
        placement=placement,
        order=np.array(order),
        fusion_group=group,
        provenance="relays as copies",
    )


def _with_copies(graph: Graph, placement: NDArray[np.int32], chips_of: dict[str, tuple[int, ...]]) -> Graph:
    b = GraphBuilder(graph.name, precision=graph.precision, dims=graph.dims)
    for k in np.flatnonzero(graph.tensor_producer == NO_PRODUCER):
        name, elements, dtype = _tensor(graph, int(k))
        b.add_tensor(name, elements, dtype, TENSOR_KINDS[graph.tensor_kind[k]])
    read_ptr, reads = graph.op_reads
    out_ptr, outputs = graph.op_outputs
    for op in range(graph.num_ops):
        read = reads[read_ptr[op] : read_ptr[op + 1]]
        written = [int(k) for k in outputs[out_ptr[op] : out_ptr[op + 1]]]
        sources = [_source(graph.tensor_names[graph.reader_tensor[r]], placement[op], chips_of) for r in read]
        b.add_op(
            graph.op_names[op],
            graph.op_types[op],
            OP_CLASSES[graph.op_class[op]],
            flops=float(graph.op_flops[op]),
            dtype=DTYPES[graph.op_dtype[op]],
            reads=list(zip(sources, graph.reader_elements[read].tolist(), strict=True)),
            writes=[_tensor(graph, k) for k in written],
            measured_s={kind: s[op] for kind, s in graph.measured_s.items() if not np.isnan(s[op])},
            excluded_kinds=[kind for kind, excluded in graph.excluded.items() if excluded[op]],
        )
        for tensor in written:
            name, elements, dtype = _tensor(graph, tensor)
            if graph.tensor_is_output[tensor]:
                b.mark_output(name)
            for chip in chips_of.get(name, ()):
                copy = relay_name(name, chip)
                source = _source(name, chip, chips_of)
                b.add_op(
                    copy,
                    COPY_TYPE,
                    "data_movement",
                    flops=0,
                    dtype=dtype,
                    reads=[(source, None)],
                    writes=[(copy, elements, dtype)],
                )
    return b.build()


def _source(tensor: str, chip: int, chips_of: dict[str, tuple[int, ...]]) -> str:
    """What a reader on ``chip`` reads: the last copy before it, or the tensor itself."""
    before = [relay for relay in chips_of.get(tensor, ()) if relay < chip]
    return relay_name(tensor, before[-1]) if before else tensor


def _tensor(graph: Graph, k: int) -> tuple[str, int, str]:
    return graph.tensor_names[k], int(graph.tensor_elements[k]), DTYPES[graph.tensor_dtype[k]]
