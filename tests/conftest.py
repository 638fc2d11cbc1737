"""Settings all tests share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

# Makes `tests.strategies` importable when pytest is not started as `python -m pytest`.
sys.path.append(str(Path(__file__).resolve().parent.parent))

# Tests compile many small programs that run once: optimizing them takes longer than they run.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
if version("jaxlib").startswith("0.10."):  # a version that does not know the flag ends the process
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")

# An error in a method of the search fails the test instead of costing the search that method.
os.environ.setdefault("GO_OPT_RAISES", "1")

# The first example of a test may compile a kernel.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if "CI" in os.environ else "local")


def pytest_sessionstart() -> None:
    """Two workers compile what most tests need, each what the other does not."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        return
    from go_opt.common.compiling import quick_compilation
    from go_opt.search.compiling.warm_up import warm_up

    if worker == "gw0":
        warm_up(simulator=False)
        with quick_compilation():
            _propagate()
    else:
        warm_up(policy=True, backwards=True)


@pytest.fixture(scope="session", autouse=True)
def _quick_compilation() -> Iterator[None]:
    """Of what tests compile by themselves; JAX traces their programs in less time with it, too."""
    from go_opt.common.compiling import quick_compilation

    with quick_compilation():
        yield


# Where searches rewrite, as those of users do.
END_TO_END: Final = ("cli", "contract", "service", "go_opt/test_request.py", "test_readme.py", "test_docs.py")


@pytest.fixture(scope="module", autouse=True)
def _graphs_as_sent(request: pytest.FixtureRequest) -> Iterator[None]:
    """Elsewhere a search rewrites only if a test asks for it, as methods are tested by their own plans."""
    from go_opt.result import Request

    with pytest.MonkeyPatch.context() as patch:
        if not request.path.relative_to(Path(__file__).parent).as_posix().startswith(END_TO_END):
            patch.setitem(Request.__init__.__kwdefaults__, "rewrite", False)
        yield


def _propagate() -> None:
    """The search over propagators compiles for half a minute: once, before any test asks for it."""
    from go_opt.bench.rivals import RIVALS, Limits, compete
    from tests.agents.rivals.cases import toy_problem

    for relays in (False, True):
        compete(RIVALS["random"], toy_problem(relays=relays), Limits(evaluations=1), 0)
