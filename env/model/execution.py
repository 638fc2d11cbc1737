"""The event loop of one execution; :mod:`go_opt.env.model.makespan` says what it computes."""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import IntArray, LongArray, RecordArray
from go_opt.common.compiling import int64, uncounted_inner
from go_opt.env.model.package import NONE, Package


@uncounted_inner
def execute(
    package: Package,
    kernels: RecordArray,
    ops: RecordArray,
    sequence: IntArray,
    num_kernels: int,
    stream_bytes: LongArray,
    at_most_s: float,
) -> float:
    """Returns the makespan, or infinity if it is above ``at_most_s``; fills in the state in ``package``.

    Args:
      kernels, ops: [N] KERNEL and OP.
      sequence: kernels in the plan's order; the first ``num_kernels`` count.
      stream_bytes: [D] weights streamed to each chip before its first kernel.
    """
    run, chips = package.run, package.chips
    _begin(package, kernels, sequence, num_kernels)
    _wait(package, ops)
    _fetch(package, kernels, ops, sequence, num_kernels, stream_bytes)
    for i in range(num_kernels):
        _start_if_ready(kernels, run, chips, int64(sequence[i]))
    host_out_free_s = 0.0
    finished_s = 0.0
    num_ended = 0
    while finished_s <= at_most_s:
        # At most one kernel runs per chip, so a scan over the chips finds the next event.
        chip = int64(0)
        for other in range(1, len(chips)):
            if chips[other].end_s < chips[chip].end_s:
                chip = int64(other)
        kernel, now_s = chips[chip].running, chips[chip].end_s
        if now_s == np.inf:
            return finished_s
        chips[chip].end_s = np.inf
        run[kernel].rank = num_ended
        num_ended += 1
        finished_s = max(finished_s, now_s)
        if run[kernel].following != NONE:
            _arrive(kernels, run, chips, run[kernel].following, kernel, now_s)
        op = kernels[kernel].first_op
        while op != NONE:
            for i in range(package.op_lists[op].outputs, package.op_lists[op + 1].outputs):
                tensor = int64(package.outputs[i])
                if package.tensors[tensor].is_output:
                    begin_s = max(now_s, host_out_free_s)
                    package.sent[tensor].to_host_s = begin_s
                    size_bytes = package.tensors[tensor].size_bytes
                    host_out_free_s = begin_s + size_bytes * package.host_s_per_byte[1]
                    finished_s = max(finished_s, host_out_free_s)
                _send(package, kernels, ops, tensor, kernel, now_s)
            op = ops[op].following
    return np.inf


@uncounted_inner
def _begin(package: Package, kernels: RecordArray, sequence: IntArray, num_kernels: int) -> None:
    """Reset the state, and link each kernel to the next one on its chip."""
    run, chips = package.run, package.chips
    for chip in range(len(chips)):
        chips[chip].running = NONE
        chips[chip].end_s = np.inf
    for link in range(len(package.links)):
        package.links[link].free_s = 0.0
        package.links[link].seen = 0
    for i in range(num_kernels):
        kernel = int64(sequence[i])
        chip = kernels[kernel].chip
        before = chips[chip].running
        chips[chip].running = kernel
        run[kernel].waits_for = before != NONE
        run[kernel].following = NONE
        run[kernel].cause = NONE
        run[kernel].start_s = 0.0
        if before != NONE:
            run[before].following = kernel


@uncounted_inner
def _wait(package: Package, ops: RecordArray) -> None:
    """Count what each kernel waits for: every read of an op from another kernel."""
    for op in range(len(ops)):
        kernel = ops[op].kernel
        for i in range(package.op_lists[op].outputs, package.op_lists[op + 1].outputs):
            tensor = package.outputs[i]
            for r in range(package.tensors[tensor].readers, package.tensors[tensor + 1].readers):
                reader = ops[package.readers[r]].kernel
                package.run[reader].waits_for += reader != kernel


@uncounted_inner
def _arrive(
    kernels: RecordArray, run: RecordArray, chips: RecordArray, kernel: int, cause: int, now_s: float
) -> None:
    """End one wait of ``kernel`` at ``now_s``, due to the kernel ``cause``."""
    if now_s >= run[kernel].start_s:
        run[kernel].start_s = now_s
        run[kernel].cause = cause
    run[kernel].waits_for -= 1
    _start_if_ready(kernels, run, chips, kernel)


@uncounted_inner
def _start_if_ready(kernels: RecordArray, run: RecordArray, chips: RecordArray, kernel: int) -> None:
    if run[kernel].waits_for == 0:
        chip = kernels[kernel].chip
        chips[chip].running = kernel
        chips[chip].end_s = run[kernel].start_s + kernels[kernel].seconds


@uncounted_inner
def _fetch(
    package: Package,
    kernels: RecordArray,
    ops: RecordArray,
    sequence: IntArray,
    num_kernels: int,
    stream_bytes: LongArray,
) -> None:
    """Delay kernels until their inputs and streamed weights have crossed the host's link."""
    run, chips, fetched_s = package.run, package.chips, package.fetched_s
    fetched_s[:] = np.inf
    now_s = 0.0
    for i in range(num_kernels):
        kernel = int64(sequence[i])
        chip = kernels[kernel].chip
        if chips[chip].running != NONE:  # this is its first kernel
            chips[chip].running = NONE
            if stream_bytes[chip] > 0:
                now_s += stream_bytes[chip] * package.host_s_per_byte[0]
                run[kernel].start_s = max(run[kernel].start_s, now_s)
        op = kernels[kernel].first_op
        while op != NONE:
            for j in range(package.op_lists[op].inputs, package.op_lists[op + 1].inputs):
                tensor = int64(package.inputs[j])
                at = fetched_place(package, tensor, int64(chip))
                if fetched_s[at] == np.inf:
                    now_s += package.tensors[tensor].size_bytes * package.host_s_per_byte[0]
                    fetched_s[at] = now_s
                run[kernel].start_s = max(run[kernel].start_s, fetched_s[at])
            op = ops[op].following


@uncounted_inner
def fetched_place(package: Package, tensor: int, chip: int) -> int:
    """The place in ``fetched_s`` of an input on a chip."""
    return int64(package.tensors[tensor].fetched) + (0 if package.host_multicast else chip)


@uncounted_inner
def depart(
    package: Package, kernels: RecordArray, ops: RecordArray, tensor: int, kernel: int, now_s: float
) -> float:
    """Returns when a tensor leaves: once all links of its routes are free. Occupies these links."""
    home, links, size_bytes = kernels[kernel].chip, package.links, package.tensors[tensor].size_bytes
    first, last = package.tensors[tensor].readers, package.tensors[tensor + 1].readers
    begin_s = now_s
    if size_bytes == 0:
        return begin_s
    num_used = int64(0)
    farthest = int64(0)
    for r in range(first, last):
        chip = kernels[ops[package.readers[r]].kernel].chip
        if chip == home:
            continue
        if package.is_ring:
            farthest = max(farthest, (chip - home) % len(package.chips))
            continue
        pair = home * len(package.chips) + chip
        for i in range(package.pairs[pair].links, package.pairs[pair + 1].links):
            link = int64(package.route_link[i])
            if links[link].seen != tensor + 1:
                links[link].seen = tensor + 1
                package.used[num_used] = link
                num_used += 1
    for hop in range(farthest):
        link = (home + hop) % len(package.chips)
        if link < len(links):  # a chain has no link from its last chip to its first
            package.used[num_used] = link
            num_used += 1
    for i in range(num_used):
        begin_s = max(begin_s, links[package.used[i]].free_s)
    for i in range(num_used):
        link = package.used[i]
        links[link].free_s = begin_s + size_bytes * links[link].s_per_byte
    return begin_s


@uncounted_inner
def _send(
    package: Package, kernels: RecordArray, ops: RecordArray, tensor: int, kernel: int, now_s: float
) -> None:
    """Send a tensor to its readers."""
    home, size_bytes = kernels[kernel].chip, package.tensors[tensor].size_bytes
    begin_s = depart(package, kernels, ops, tensor, kernel, now_s)
    package.sent[tensor].sent_s = begin_s
    for r in range(package.tensors[tensor].readers, package.tensors[tensor + 1].readers):
        reader = ops[package.readers[r]].kernel
        if reader == kernel:
            continue
        chip = kernels[reader].chip
        there_s = now_s
        if chip != home and size_bytes > 0:
            pair = home * len(package.chips) + chip
            there_s = begin_s + (package.pairs[pair].setup_s + size_bytes * package.pairs[pair].s_per_byte)
        _arrive(kernels, package.run, package.chips, reader, kernel, there_s)
