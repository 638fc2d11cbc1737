"""This machine as a target: its processes are the chips."""

from __future__ import annotations

import os
from typing import Final

import numpy as np

from go_opt.run.profiling.fitting import Rates

KIND: Final = "process"
_LEAST_S: Final = 1e-15  # for a quantity with a fitted cost of zero
UNKNOWN: Final = Rates(np.full(5, 1e-10), 1e-10)  # before anything is measured


def machine_target(rates: Rates, chips: int, name: str) -> str:
    """The text of a target file.

    The file has no rate for transcendental elements: only the costs of ops contain these seconds.
    """
    matrix_s, vector_s, byte_s, op_s, _ = (max(float(value), _LEAST_S) for value in rates.per_quantity_s)
    cut_rate = 1 / max(rates.per_cut_byte_s, _LEAST_S)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // chips
    return f"""\
# Measured by `go-opt profile` in processor seconds of one thread: processes of ONNX Runtime as chips.
name = "{name}"
description = "{chips} processes of ONNX Runtime on one machine, one thread each"
native_dtype = "float32"
overlap = false # a process copies its tensors itself

[constraints]
acyclic = true
no_skip = "off"
triangle = "off"

[topology]
kind = "all_to_all"
rate_bytes_per_s = {cut_rate:.6g} # a tensor that leaves or enters is copied and laid out anew
latency_s = 0.0

[host]
in_bytes_per_s = {cut_rate:.6g}
out_bytes_per_s = {cut_rate:.6g}

[[kinds]]
name = "{KIND}"
count = {chips}
sram_bytes = {memory} # a share of the machine's memory
sram_bytes_per_s = {1 / byte_s:.6g}
kernel_overhead_s = {op_s:.6g}
pays_transfers = true

[kinds.matrix_flops_per_s]
default = {1 / matrix_s:.6g}

[kinds.vector_flops_per_s]
default = {1 / vector_s:.6g}
"""
