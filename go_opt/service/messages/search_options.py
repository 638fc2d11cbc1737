"""What a client may ask of a search."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from go_opt.constraint_file import as_constraints
from go_opt.env.model.metrics import Fidelity
from go_opt.errors import InvalidInputError
from go_opt.given_start import as_start
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.model.start import Start
from go_opt.result import Decide, Objective, Request
from go_opt.solver.problem.user_constraints import UserConstraint


class SearchOptions(TypedDict, total=False):
    """Those of :func:`go_opt.optimize` that a service has too, with the same defaults."""

    objective: Objective
    budget_s: float | None
    max_evaluations: int | None
    seed: int
    decide: Decide
    relays: bool
    replication: bool
    splits: bool
    output_parts: bool
    fidelity: Fidelity
    constraints: Sequence[UserConstraint] | str | Path  # a path is of a file of this side
    max_latency_s: float | None
    simulate: bool
    start: Start | Plan | str | Path | None  # a path is of a file of this side
    policy: str | None  # "default", "none" or None, or the name of one that the service trained


def read_options(options: SearchOptions, graph: Graph | None) -> tuple[Request, str | None]:
    """The request and the policy of the options.

    Args:
      graph: None where it is not known in this process.

    Raises:
      InvalidInputError: a value is out of range.
      TypeError: there is no such option.
    """
    asked: dict[str, Any] = {"constraints": (), "policy": "default", **options}
    policy = asked.pop("policy")
    if not isinstance(policy, str | None):
        raise InvalidInputError(
            f"policy must be the name of one that the service has, not {policy!r}.", field="policy"
        )
    asked["constraints"] = as_constraints(asked["constraints"])
    asked["start"] = as_start(asked.get("start"), graph)
    return Request(**asked), policy
