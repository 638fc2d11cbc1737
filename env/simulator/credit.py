"""Which deliveries have credit: their reader grants a buffer before the tensor is sent.

Replicas of a chip count as one chip here. A dependency that the target's triangle rule
forbids has no credit: the hardware keeps no count for it, which is the reason for the rule.
"""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import BoolArray, RecordArray
from go_opt.common.compiling import compiled_inner
from go_opt.env.simulator.package import CHIP_FLOW

RULES = ("off", "longest_path", "three_chip", "adjacent")
OFF, LONGEST_PATH, THREE_CHIP, ADJACENT = range(4)


@compiled_inner
def grant_credit(flows: RecordArray, deliveries: RecordArray, num_chips: int, rule: int) -> None:
    """Set ``has_credit`` of all deliveries except those over a dependency that the rule forbids."""
    for i in range(len(deliveries)):
        deliveries[i].has_credit = 1
    if rule == OFF:
        return
    depends = np.zeros((num_chips, num_chips), np.bool_)
    for i in range(len(deliveries)):
        delivery, flow = deliveries[i], flows[deliveries[i].flow]
        if flow.kind == CHIP_FLOW:
            depends[flow.chip, delivery.chip - delivery.replica] = True
    reaches = _reaches(depends) if rule == LONGEST_PATH else depends
    for i in range(len(deliveries)):
        delivery, flow = deliveries[i], flows[deliveries[i].flow]
        if flow.kind != CHIP_FLOW:
            continue
        reader = delivery.chip - delivery.replica
        if rule == ADJACENT:
            delivery.has_credit = reader == flow.chip + flow.replicas
            continue
        for chip in range(num_chips):
            if depends[flow.chip, chip] and chip != reader and reaches[chip, reader]:
                delivery.has_credit = 0


@compiled_inner
def _reaches(depends: BoolArray) -> BoolArray:
    """[D, D] whether dependencies lead from a chip to another one; they go to higher chips."""
    reaches = depends.copy()
    num_chips = len(depends)
    for source in range(num_chips - 1, -1, -1):
        for chip in range(source + 1, num_chips):
            if depends[source, chip]:
                for beyond in range(chip + 1, num_chips):
                    reaches[source, beyond] |= reaches[chip, beyond]
    return reaches
