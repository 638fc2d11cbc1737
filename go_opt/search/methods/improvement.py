"""Rounds that improve the best plan: the search for a proof, which finds placements as well.

Where evaluations are counted, a round is so many expansions of each refinement, each part counts as
one evaluation, and what comes out follows from the number of rounds. Where time is what is short the
proof runs on a thread of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np

from go_opt.env import cost_tables
from go_opt.search.compiling.kernel_cache import are_compiled
from go_opt.search.methods.background import has_core_to_spare
from go_opt.search.methods.events import Event, SearchView, Waiting, may_replicate, waiting_until
from go_opt.search.methods.refining import BackgroundRefining, Refining
from go_opt.solver.certify.problem.build import refinement_problem
from go_opt.solver.certify.problem.joint_floors import joint_refinement_problem


def improvements(search: SearchView) -> Iterator[Event]:
    """Events of every round, until the proof is over."""
    yield from waiting_until(are_compiled)
    refinings: list[Refining] = []
    with ExitStack() as closing:
        for refining in _refinings(search):
            closing.callback(refining.close)
            refinings.append(refining)
            yield Waiting()  # of 50,000 ops each takes a good part of a second to begin with
        while refinings:
            left = [one for one in refinings if not one.is_over]
            for refining in refinings:  # those that are over by now say their last
                refining.run()
                yield from refining.events(search)
            refinings = left


def _refinings(search: SearchView) -> Iterator[Refining]:
    """The proof; and where the placement alone is open the best one, without what the proof leaves out.

    With relays, the proof leaves out the triangle rule, so relays cost nothing there. Without them it keeps
    what the rule implies for neighbours on the ring.
    """
    graph, request, roles = search.graph, search.request, search.roles
    tables = cost_tables(graph, search.target)
    default = np.arange(graph.num_ops, dtype=np.int32)
    if request.decide == "placement":
        triangle = search.target.constraints.triangle
        is_strict = search.passing == "adjacent" and triangle in ("longest_path", "adjacent")
        relaxed = refinement_problem(
            graph, tables, passing="adjacent" if is_strict else "free", tight=True,
            sure_only=triangle == "longest_path",
        )  # fmt: skip
        yield Refining(relaxed, proves=True)
        yield Refining(refinement_problem(graph, search.tables, default, passing=search.passing))
        return
    replicates = may_replicate(search.target, request)
    relaxed = joint_refinement_problem(graph, tables, roles, replicates=replicates)
    yield (BackgroundRefining if has_core_to_spare(search) else Refining)(relaxed, proves=True)
