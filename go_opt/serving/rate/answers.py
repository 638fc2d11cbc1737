"""Plans for a rate as JSON and as lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from go_opt.common.units import format_duration
from go_opt.serving.rate.planning import RatePlan


def rate_to_dict(plan: RatePlan) -> dict[str, Any]:
    """What ``--json`` has of the rate, beside the plan of one copy."""
    choice = plan.choice
    facts = {
        "rate_per_s": plan.asked.rate_per_s,
        "capacity_per_s": choice.capacity_per_s,
        "copies": choice.replicas,
        "chips": choice.chips,
        "least_chips": plan.least_chips,
        "p99_s": choice.p99_s,
    }
    if choice.served.is_decoding:
        sequences = {"sequences": choice.served.batch, "tokens_per_sequence": plan.asked.tokens}
        return facts | sequences | {"token_s": choice.token_s}
    return facts | {
        "batch": choice.served.batch,
        "window_s": choice.window_s,
        "batch_interval_s": choice.served.interval_s,
        "batch_latency_s": choice.served.latency_s,
    }


def rate_lines(plan: RatePlan, num_chips: int) -> Iterator[str]:
    choice = plan.choice
    served = choice.served
    copies = f"{choice.replicas} copies of {served.chips} chips"
    yield f"serves      {plan.asked.rate_per_s:g}/s of at most {choice.capacity_per_s:,.4g}/s, with {copies}"
    if served.is_decoding:
        tokens = f"{plan.asked.tokens:g} tokens each in the mean"
        yield f"sequences   {served.batch} in flight in each copy, {tokens}"
        yield f"token       {format_duration(choice.token_s)} from one to the next of a sequence, at most"
        what = "p99 first  "
    else:
        window = f", which leaves after {format_duration(choice.window_s)} if not full"
        yield f"batch       {served.batch}{window if served.batch > 1 else ''}"
        what = "p99        "
    for name, seconds in choice.p99_s.items():
        yield f"{what} {format_duration(seconds)}, simulated with {name} arrivals"
    these = "any number of sequences" if served.is_decoding else "these batches"
    bound = f"no fewer than {plan.least_chips} take the rate with {these}"
    yield f"chips       {choice.chips} of {num_chips}; {bound}"
