"""Addresses for the buffers of a chip over one inference: first fit, aligned."""

from __future__ import annotations

import numpy as np
from numba import njit

NO_PLACE = -1


@njit(cache=True, nogil=True)
def place_buffers(size_bytes, born, dead, limit_bytes, address):
    """Give each buffer the lowest address where it fits; fills ``address`` [A].

    Buffers come in the order of ``born``, the first kernel that needs them; ``dead`` is
    the last one, included. Returns the first buffer that fits no hole, or -1.
    """
    num_live = 0
    # Live buffers by address.
    live = np.empty(len(size_bytes), np.int64)
    for buffer in range(len(size_bytes)):
        kept = 0
        for i in range(num_live):
            if dead[live[i]] >= born[buffer]:
                live[kept] = live[i]
                kept += 1
        num_live = kept
        place = np.int64(0)
        at = num_live
        for i in range(num_live):
            if place + size_bytes[buffer] <= address[live[i]]:
                at = i
                break
            place = address[live[i]] + size_bytes[live[i]]
        if place + size_bytes[buffer] > limit_bytes:
            return buffer
        address[buffer] = place
        for i in range(num_live, at, -1):
            live[i] = live[i - 1]
        live[at] = buffer
        num_live += 1
    return NO_PLACE
