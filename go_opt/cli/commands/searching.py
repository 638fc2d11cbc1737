"""A search as people watch it, in this process or at a service; Ctrl-C keeps the best plan so far."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from go_opt.result import Step

if TYPE_CHECKING:
    from go_opt.cli.commands.connection import Connection
    from go_opt.env import Target
    from go_opt.model.graph import Graph
    from go_opt.result import OptimizeResult


def search(graph: Graph, target: Target, options: dict[str, Any]) -> OptimizeResult:
    """The answer of this process."""
    from go_opt import api
    from go_opt.cli.commands.interrupt import InterruptAsks
    from go_opt.report.progress import SearchProgress, announce_compilation

    announce_compilation()
    progress = SearchProgress(options["objective"])
    with InterruptAsks() as interrupt:

        def on_step(step: Step) -> None:
            interrupt.on_step(step)
            progress.on_step(step)

        return api.optimize(graph, target, on_step=on_step, should_stop=interrupt.is_asked, **options)


def ask_server(connection: Connection, graph: Graph, target: str, options: dict[str, Any]) -> OptimizeResult:
    """The service's answer; Ctrl-C ends its search and keeps the best plan it has sent."""
    from go_opt.cli.commands.interrupt import interrupts_raised
    from go_opt.report.progress import SearchProgress

    progress, steps = SearchProgress(options["objective"]), list[Step]()
    best: OptimizeResult | None = None
    with connection.client() as client, closing(client.optimize_stream(graph, target, **options)) as updates:
        try:
            with interrupts_raised():
                for best in updates:
                    steps.append(_as_step(best))
                    progress.on_step(steps[-1])
        except KeyboardInterrupt:
            if best is None:
                raise
            return replace(best, history=tuple(steps))
    assert best is not None, "a stream without an answer raises."
    return best


def _as_step(improvement: OptimizeResult) -> Step:
    metrics = improvement.metrics
    best_s = metrics.makespan_s if improvement.objective == "latency" else metrics.interval_s
    return Step(improvement.method, best_s, best_s, improvement.evaluations, improvement.wall_s)
