"""Serving a rate: decisions, and the equations of the sources."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from go_opt.serving.rate.planning import Served, decide
from go_opt.serving.rate.queueing import Server, arrivals_s, p99_s

ONE = Served(batch=1, chips=4, interval_s=1e-3, latency_s=2e-3, host_s=1e-6)
EIGHT = Served(batch=8, chips=4, interval_s=2e-3, latency_s=6e-3, host_s=8e-6)


def test_batches_save_chips() -> None:
    alone = decide([ONE], 64, 3000.0, 20e-3, is_fewest=True)
    both = decide([ONE, EIGHT], 64, 3000.0, 20e-3, is_fewest=True)
    assert alone is not None
    assert both is not None
    assert both.served is EIGHT
    assert both.chips < alone.chips
    for choice in (alone, both):
        assert choice.capacity_per_s >= 3000.0
        assert choice.worst_s <= 20e-3


def test_no_fewer_copies_pass() -> None:
    choice = decide([EIGHT], 64, 3000.0, 15e-3, is_fewest=True)
    assert choice is not None
    for copies in range(1, choice.replicas):
        for window_s in np.linspace(0, 15e-3, 31):
            server = Server(8, float(window_s), copies, EIGHT.interval_s, EIGHT.latency_s)
            assert max(p99_s(times, server) for times in arrivals_s(3000.0).values()) > 15e-3


def test_the_least_p99_of_all_chips() -> None:
    choice = decide([ONE, EIGHT], 64, 1000.0, math.inf, is_fewest=False)
    assert choice is not None
    assert choice.served is ONE
    assert choice.worst_s == pytest.approx(2e-3)


def test_a_limit_below_the_latency_is_refused() -> None:
    assert decide([ONE, EIGHT], 64, 100.0, 1e-3, is_fewest=True) is None
    assert decide([ONE], 4, 1001.0, 1.0, is_fewest=True) is None


def test_copies_share_the_host() -> None:
    busy = replace(ONE, host_s=0.5e-3)
    assert decide([busy], 64, 2500.0, 1.0, is_fewest=True) is None  # 2,000 a second through the host
    assert decide([busy], 64, 1500.0, 1.0, is_fewest=True) is not None


def test_sequences_share_places() -> None:
    # Four sequences in flight, a token of each every 2 ms: 2,000 tokens a second for each copy.
    four = Served(batch=4, chips=4, interval_s=2e-3, latency_s=2e-3, host_s=1e-6, is_decoding=True)
    assert decide([four], 64, 33_000.0, math.inf, is_fewest=True, tokens=50.0) is None
    choice = decide([four], 64, 8_000.0, 20e-3, is_fewest=True, tokens=50.0)
    assert choice is not None
    assert choice.capacity_per_s == pytest.approx(choice.replicas * 2_000)
    assert choice.token_s == 2e-3
    assert choice.worst_s <= 20e-3
    fewer = decide([four], choice.chips - 4, 8_000.0, 20e-3, is_fewest=True, tokens=50.0)
    assert fewer is None
    # Where the host is the bottleneck, tokens come later.
    busy = replace(four, host_s=1e-3)
    slow = decide([busy], 64, 3_000.0, math.inf, is_fewest=False, tokens=50.0)
    assert slow is not None
    assert slow.token_s == pytest.approx(max(2e-3, slow.replicas * 1e-3))
