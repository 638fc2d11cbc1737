"""Designs of packages as JSON and as lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from go_opt.common.units import format_duration, format_ratio
from go_opt.errors import InvalidInputError
from go_opt.result_json import finite
from go_opt.serving.links.design import Design

_LINKS: Final = re.compile(r"\+?([1-9][0-9]{0,3}) links?")


def parse_links(text: str) -> int:
    """The number of ``+8 links``.

    Raises:
      InvalidInputError: it is another text.
    """
    match = _LINKS.fullmatch(text.strip())
    if match is None:
        raise InvalidInputError(
            f"--budget must be links to add, such as '+8 links', not {text[:100]!r}.", field="budget"
        )
    return int(match[1])


def design_to_dict(name: str, design: Design) -> dict[str, Any]:
    """A package as ``design --json`` has it; ``name`` says what was asked of it."""
    result = design.result
    return {
        "package": name,
        "links": [{"source": a, "destination": b} for a, b in design.added],
        "before_s": design.before.objective_s,
        "objective_s": result.objective_s,
        "simulated_interval_s": None
        if result.simulated_interval_s is None
        else finite(result.simulated_interval_s),
        "latency_s": result.metrics.latency_s,
        "bottleneck": result.metrics.bottleneck,
        "lower_bound_s": design.bound.seconds,
        "bound_reason": design.bound.reason,
        "gap": finite(design.gap),
        "chips_used": result.plan.chips_used,
        "searches": design.searches,
    }


def design_lines(designs: Sequence[tuple[str, Design]], best: int) -> Iterator[str]:
    """Each package, and what to add to the best."""
    for name, design in designs:
        gap = format_ratio(design.gap)
        yield (
            f"{name}: {format_duration(design.result.objective_s)}, by {design.result.metrics.bottleneck}; "
            f"no choice below {format_duration(design.bound.seconds)}, gap {gap}"
        )
    name, design = designs[best]
    if len(designs) > 1:
        yield f"best        {name}"
    after_s, before_s = design.result.objective_s, design.before.objective_s
    if design.added:
        links = ", ".join(f"{a}->{b}" for a, b in design.added)
        yield f"add         {links}"
        yield f"gain        {format_duration(before_s)} to {format_duration(after_s)}"
    elif design.searches > 1 or after_s <= design.bound.seconds:
        yield "add         no link: none of those tried makes a plan faster"
