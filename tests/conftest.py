"""Settings all tests share."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

# Makes `tests.strategies` importable when pytest is not started as `python -m pytest`.
sys.path.append(str(Path(__file__).resolve().parent.parent))

# Tests compile many small programs that run once: optimizing them takes longer than they run.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

# The first example of a test may compile a kernel.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if "CI" in os.environ else "local")


def pytest_sessionstart() -> None:
    """Two workers compile the common kernels from both ends, and not each of them all."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None:
        from go_opt.search.compiling.warm_up import warm_up

        warm_up(backwards=worker != "gw0")
