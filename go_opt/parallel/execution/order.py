"""What each rank does in a step: its passes in the order of the schedule, and the messages between ranks.

A message is one call on both its ranks, which wait for each other. All ranks make their calls in the order
of one timeline, the simulated one, so that none waits for a call that comes later.
"""

from __future__ import annotations

from go_opt.parallel.execution.job import Action
from go_opt.parallel.schedule import simulate
from go_opt.parallel.step import Step


def rank_actions(step: Step) -> list[list[Action]]:
    """[P] what each rank does in a step."""
    timeline = simulate(step)
    ranks, order = step.chosen.pipeline, timeline.order
    stages = ranks * step.chosen.stages_per_device
    found: list[tuple[float, int, int, Action]] = []  # when, messages before passes, the rank
    for rank in range(ranks):
        for i, chunk in enumerate(order.chunk[rank].tolist()):
            stage, number = chunk * ranks + rank, int(order.micro_batch[rank, i])
            is_backward = bool(order.is_backward[rank, i])
            kind = "backward" if is_backward else "forward"
            start_s, end_s = float(timeline.start_s[rank, i]), float(timeline.end_s[rank, i])
            found.append((start_s, 1, rank, Action(kind, stage, number, is_backward, -1)))
            reader = stage + (-1 if is_backward else 1)
            if 0 <= reader < stages:
                peer = reader % ranks
                found.append((end_s, 0, rank, Action("send", stage, number, is_backward, peer)))
                found.append((end_s, 0, peer, Action("receive", stage, number, is_backward, rank)))
    found.sort(key=lambda row: (row[0], row[1], row[3].stage, row[3].micro_batch, row[3].is_backward))
    return [[action for _, _, owner, action in found if owner == rank] for rank in range(ranks)]
