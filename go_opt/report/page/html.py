"""A page as text: the template with styles, script and data; that of a training step."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from go_opt.common.units import format_bytes, format_duration, format_ratio
from go_opt.report.page.facts import Claims
from go_opt.report.page.over_time import MOST_CHIPS, MOST_SPANS, steps_of
from go_opt.report.page.subject import colour
from go_opt.report.parts.wording import counted
from go_opt.result import OPTIMAL_GAP

if TYPE_CHECKING:
    from go_opt.parallel.plans.answers import StepAnswer


class Kind(NamedTuple):
    """A kind of page."""

    main: str  # what stands between head and scripts
    scripts: tuple[str, ...]  # concatenated in this order: each may use definitions of those before it


PLAN: Final = Kind(
    "plan",
    (
        "units", "dom", "head", "pipeline", "view", "graph", "details", "search", "timeline", "memory",
        "limits", "main",
    ),
)  # fmt: skip
STEP: Final = Kind(
    "step", ("units", "dom", "head", "pipeline", "view", "timeline", "memory", "limits", "step")
)
# In a script element, text ends at "</script" and "<!--" opens a comment, so data must not contain "<".
_ESCAPED: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def page_text(data: dict[str, Any], kind: Kind = PLAN) -> str:
    """The page. Its data cannot end their script element, and only the page's own script may run."""
    assets = files(f"{__package__}.assets")
    style = _text(assets / "page.css")
    script = "\n".join(_text(assets / f"{name}.js") for name in kind.scripts)
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    main = _text(assets / f"{kind.main}.html")
    parts = {"main": main, "policy": policy, "style": style, "script": script, "data": escaped_json(data)}
    page = _text(assets / "page.html")
    pieces = page.split("@@")  # text, name of a part, text, …
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def escaped_json(data: dict[str, Any]) -> str:
    """JSON in ASCII that is safe in a script element."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).translate(_ESCAPED)


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _text(asset: Traversable) -> str:
    return asset.read_text("utf-8")


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
        "stages": [row | {"colour": colour(i)} for i, row in enumerate(drawn.ranks)],
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
