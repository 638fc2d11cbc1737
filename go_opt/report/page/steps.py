"""A plan of a training step as one page: its ranks, where its time goes, its schedule and its memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from go_opt.common.units import format_bytes, format_duration, format_ratio
from go_opt.report.page.facts import Claims
from go_opt.report.page.html import STEP, page_text
from go_opt.report.page.over_time import MOST_CHIPS, MOST_SPANS, steps_of
from go_opt.report.page.subject import COLOURS
from go_opt.report.parts.wording import counted
from go_opt.result import OPTIMAL_GAP

if TYPE_CHECKING:
    from go_opt.parallel.plans import StepAnswer

_SAME: Final = 1e-9  # relative difference below which seconds are equal


def step_page(answer: StepAnswer, claims: Claims) -> str:
    """The text of the page.

    Args:
      claims: what the plan file says of the search that made it.
    """
    return page_text(step_data(answer, claims), STEP)


def step_data(answer: StepAnswer, claims: Claims) -> dict[str, Any]:
    """The content of the page, as JSON types."""
    drawn, step = answer.drawing(MOST_CHIPS, MOST_SPANS), answer.step
    ranks, rows = len(drawn.ranks), len(drawn.timeline["rows"])
    notes = [f"Of {ranks} ranks {rows} are drawn."] if rows < ranks else []
    if drawn.timeline["passes_left_out"]:
        notes.append(f"Only the first {MOST_SPANS:,} passes of a rank are drawn.")
    memory = []
    for held in drawn.memory:
        begins_s, most = steps_of(held.begin_s, held.held_bytes.astype(np.int64), drawn.simulated_s)
        memory.append(
            {
                "begin_ns": [round(begin_s * 1e9) for begin_s in begins_s],
                "bytes": most,
                "most_bytes": held.peak_bytes,
                "weight_bytes": held.state_bytes,
                "weights": "weights, gradients and moments",
                "limit_bytes": step.case.memory_bytes,
            }
        )
    facts = [
        {"label": label, "value": value, "note": note}
        for label, value, note in _facts(answer, drawn.simulated_s, claims)
    ]
    return {
        "title": f"{answer.model} on {step.case.machine.target.name}",
        "summary": f"{counted(step.case.batch, 'sequence')}, {answer.parallel}",
        "facts": facts,
        "stages": [row | {"colour": COLOURS[i % len(COLOURS)]} for i, row in enumerate(drawn.ranks)],
        "parts": drawn.parts,
        "helps": drawn.helps,
        "timeline": drawn.timeline,
        "memory": memory,
        "notes": {"timeline": notes},
    }


def _facts(answer: StepAnswer, simulated_s: float, claims: Claims) -> Iterator[tuple[str, str, str]]:
    step = answer.step
    tokens_per_s = step.case.batch * step.case.model.sequence / step.step_s
    yield "step", format_duration(step.step_s), f"{tokens_per_s:.4g} tokens/s"
    yield "simulated", format_duration(simulated_s), f"{simulated_s / step.step_s:.3f}x the predicted step"
    most = max(step.memory_bytes)
    rank, fits = step.memory_bytes.index(most), "" if not step.lacks else "does not fit: "
    yield "memory", format_bytes(most), f"{fits}rank {rank}, of {format_bytes(step.case.memory_bytes)}"
    number = step.chosen.micro_batches(step.case.batch)
    yield "micro-batches", str(number), f"of {counted(step.chosen.micro_batch, 'sequence')} on each replica"
    bound_s = claims.lower_bound_s
    if bound_s is not None and bound_s <= step.step_s * (1.0 + _SAME):
        gap = step.step_s / bound_s - 1.0
        yield "bound", format_duration(bound_s), "no schedule in any configuration is below, the search found"
        yield "status", "OPTIMAL" if gap <= OPTIMAL_GAP else "FEASIBLE", f"gap {format_ratio(gap)}"
