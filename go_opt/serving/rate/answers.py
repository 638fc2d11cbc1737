"""Plans for a rate as JSON and as lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from go_opt.common.units import format_duration
from go_opt.serving.rate.planning import RatePlan


def rate_to_dict(plan: RatePlan) -> dict[str, Any]:
    """What ``--json`` has of the rate, beside the plan of one copy."""
    choice = plan.choice
    return {
        "rate_per_s": plan.asked.rate_per_s,
        "capacity_per_s": choice.capacity_per_s,
        "batch": choice.served.batch,
        "window_s": choice.window_s,
        "copies": choice.replicas,
        "chips": choice.chips,
        "least_chips": plan.least_chips,
        "p99_s": choice.p99_s,
        "batch_interval_s": choice.served.interval_s,
        "batch_latency_s": choice.served.latency_s,
    }


def rate_lines(plan: RatePlan, num_chips: int) -> Iterator[str]:
    choice = plan.choice
    served = choice.served
    copies = f"{choice.replicas} copies of {served.chips} chips"
    yield f"serves      {plan.asked.rate_per_s:g}/s of at most {choice.capacity_per_s:,.4g}/s, with {copies}"
    window = (
        f", which leaves after {format_duration(choice.window_s)} if not full" if served.batch > 1 else ""
    )
    yield f"batch       {served.batch}{window}"
    for name, seconds in choice.p99_s.items():
        yield f"p99         {format_duration(seconds)}, simulated with {name} arrivals"
    bound = f"no fewer than {plan.least_chips} take the rate with these batches"
    yield f"chips       {choice.chips} of {num_chips}; {bound}"
