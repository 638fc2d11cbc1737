"""The working data of executions: arrays of records, which keep related fields adjacent in memory."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray, RecordArray, csr, record, row_pointers
from go_opt.env.cost import CostTables
from go_opt.model.graph import INPUT, NO_PRODUCER

NONE: Final = -1

# Decisions. Kernel numbers are any below the number of ops; `place` is the position in the plan's order.
KERNEL: Final = record("first_op chip place", "seconds")
OP: Final = record("kernel following")  # `following` is the next op of the kernel in the plan's order
# The graph and the target. The lists of a row end where those of the next row begin.
OP_LISTS: Final = record("outputs inputs")
# `fetched` is the place in `Package.fetched_s` of an input on chip 0, the other chips follow.
TENSOR: Final = record("size_bytes is_output readers fetched")
PAIR: Final = record("links", "setup_s s_per_byte")  # of chips
# The state of an execution. `waits_for` counts kernels and tensors; `cause` is the kernel waited for last,
# or NONE; `start_s` is the latest arrival so far; `following` is the next kernel on the chip; `rank` is the
# position of the kernel's end among all ends.
RUN: Final = record("waits_for following cause rank", "start_s")
SENT: Final = record("", "sent_s to_host_s")  # of a tensor
CHIP: Final = record("running", "end_s")
LINK: Final = record("seen", "s_per_byte free_s")  # `seen` is the last tensor routed over it, counted from 1


class Package(NamedTuple):
    """A graph on a target, and buffers that successive executions reuse. Axes as in :class:`CostTables`."""

    op_lists: RecordArray  # [N + 1] OP_LISTS
    outputs: IntArray  # tensors that ops write
    inputs: IntArray  # graph inputs that ops read
    tensors: RecordArray  # [K + 1] TENSOR
    readers: IntArray  # [R] ops
    pairs: RecordArray  # [D * D + 1] PAIR
    route_link: IntArray
    run: RecordArray  # [N] RUN
    sent: RecordArray  # [K] SENT
    fetched_s: FloatArray  # when inputs have crossed the host's link to each chip; infinite if they have not
    chips: RecordArray  # [D] CHIP
    links: RecordArray  # [L] LINK
    used: LongArray  # [L] links of the tensor that leaves now
    host_s_per_byte: FloatArray  # [2] in, out
    is_ring: bool
    host_multicast: bool  # an input crosses the host's link once for all chips


def package_of(tables: CostTables) -> Package:
    """Buffers for executions of plans of ``tables``."""
    num_ops, num_tensors, num_links = tables.num_ops, len(tables.tensor_kind), len(tables.link_s_per_byte)
    produced = np.flatnonzero(tables.tensor_producer != NO_PRODUCER)
    read = tables.reader_tensor[tables.op_read]
    is_input = tables.tensor_kind[read] == INPUT
    op_lists = np.zeros(num_ops + 1, OP_LISTS)
    op_lists["outputs"], by_op = csr(tables.tensor_producer[produced], num_ops)
    op_lists["inputs"] = row_pointers(tables.reader_op[tables.op_read][is_input], num_ops)
    tensors = np.zeros(num_tensors + 1, TENSOR)
    tensors["size_bytes"][:-1] = tables.tensor_bytes
    tensors["is_output"][:-1] = tables.tensor_is_output
    tensors["readers"] = tables.reader_ptr
    inputs = np.unique(read[is_input])
    tensors["fetched"][inputs] = np.arange(len(inputs)) * tables.num_chips
    links = np.zeros(num_links, LINK)
    links["s_per_byte"] = tables.link_s_per_byte
    return Package(
        op_lists=op_lists,
        outputs=produced[by_op].astype(np.int32),
        inputs=read[is_input].astype(np.int32),
        tensors=tensors,
        readers=tables.reader_op,
        pairs=_pairs(tables),
        route_link=tables.route_link,
        run=np.zeros(num_ops, RUN),
        sent=np.zeros(num_tensors, SENT),
        fetched_s=np.zeros(len(inputs) * tables.num_chips),
        chips=np.zeros(tables.num_chips, CHIP),
        links=links,
        used=np.zeros(num_links, np.int64),
        host_s_per_byte=np.array([tables.host_in_s_per_byte, tables.host_out_s_per_byte]),
        is_ring=tables.is_ring,
        host_multicast=tables.host_multicast,
    )


def _pairs(tables: CostTables) -> RecordArray:
    """The terms of :func:`go_opt.env.cost.routes.transfer_s` for each pair of chips."""
    num_chips = tables.num_chips
    pairs = np.zeros(num_chips**2 + 1, PAIR)
    source, destination = np.divmod(np.arange(num_chips**2), num_chips)
    latency_s, s_per_byte = np.zeros(num_chips**2), np.zeros(num_chips**2)
    if tables.is_ring:
        latency_s += (destination - source) % num_chips * tables.link_latency_s[:1].sum()
        s_per_byte += tables.link_s_per_byte[:1].sum()
    else:
        pairs["links"] = tables.route_ptr
        pair = np.repeat(np.arange(num_chips**2), np.diff(tables.route_ptr))
        np.add.at(latency_s, pair, tables.link_latency_s[tables.route_link])
        np.maximum.at(s_per_byte, pair, tables.link_s_per_byte[tables.route_link])
    pairs["setup_s"][:-1] = tables.dma_setup_s[tables.chip_kind[source]] + latency_s
    pairs["setup_s"][:-1] += tables.dependency_s[tables.chip_kind[destination]]
    pairs["s_per_byte"][:-1] = s_per_byte
    return pairs
