"""Compiles the kernels of searches. A search starts it as ``python -m go_opt.search.compile_kernels``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice
from typing import Final

from go_opt.agents.generator import generate_graph
from go_opt.common.compiling import quick_compilation
from go_opt.common.files import write_atomically
from go_opt.env import Target, load_target
from go_opt.model.graph import Graph
from go_opt.result import Request
from go_opt.search.compiling.kernel_cache import COMPILES, are_compiled, marker
from go_opt.search.compiling.warm_up import warm_up
from go_opt.search.methods.events import Waiting
from go_opt.search.portfolio import portfolio_events
from go_opt.search.state import Search
from go_opt.solver import Colocate, Forbid

_EVALUATIONS: Final = 300  # until every method has had a turn
_OPS: Final = 40
_REQUESTS: Final = (
    Request(max_evaluations=_EVALUATIONS),
    Request(max_evaluations=_EVALUATIONS, relays=False),
    Request(max_evaluations=_EVALUATIONS, replication=False),
    Request(max_evaluations=_EVALUATIONS, decide="placement"),
    Request(max_evaluations=_EVALUATIONS, decide="placement", relays=False),
)
_LATENCY: Final = (Request(objective="latency", max_evaluations=_EVALUATIONS),)
_CONSTRAINED: Final = (
    Request(max_evaluations=_EVALUATIONS, constraints=(Colocate(("op0", "op1")), Forbid(("op2",), (3,)))),
)


def rehearse(graph: Graph, target: Target, request: Request) -> None:
    """Search until a method waits for compiled kernels; go on past a proven optimum."""
    search = Search(graph, target, request)
    for event in islice(portfolio_events(search), request.max_evaluations):
        if isinstance(event, Waiting) and not are_compiled():
            return  # another process compiles the remaining kernels
        search.take(event)


def _compile(requests: Iterable[Request], on: str = "mcm-2x2") -> None:
    """Run searches on a small graph, which compiles their kernels."""
    warm_up(backwards=True)  # the parent process compiles the same kernels forwards
    graph, target = generate_graph(0, num_ops=_OPS), load_target(on)
    for request in requests:
        rehearse(graph, target, request)


def main() -> None:
    """Compile and write the marker, unless it exists; the parent process holds the lock."""
    os.environ[COMPILES] = "1"
    if not marker().exists():
        with quick_compilation():
            _compile(_REQUESTS)
            _compile(_LATENCY, on="gpu-2")
            warm_up()
            write_atomically(marker(), "")
            _compile(_CONSTRAINED)


if __name__ == "__main__":
    main()
