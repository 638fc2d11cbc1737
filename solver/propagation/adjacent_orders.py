"""Visiting orders of SAMPLE and FIX."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.errors import InvalidInputError
from go_opt.solver.problem.problem import PlacementProblem
from go_opt.solver.propagation.adjacent_domains import Domains

Visiting = Literal["random", "topological", "middle_out", "most_constrained"]
VISITING: Final = ("random", "topological", "middle_out", "most_constrained")


def visiting_orders(
    problem: PlacementProblem, mode: Visiting, rng: np.random.Generator, num_samples: int
) -> IntArray:
    """Returns the units in visiting order: [S, U], or [1, U] if all samples share one order.

    * ``random``: a separate order for each sample.
    * ``topological``: each unit after its producers. The first units already use up many chips.
    * ``middle_out``: from the middle of the topological order to both ends.
    * ``most_constrained``: random; breaks ties between equally small domains.
    """
    if mode not in VISITING:
        raise InvalidInputError(f"orders is {mode!r}, must be one of {', '.join(VISITING)}.", field="orders")
    along = problem.topological
    if mode == "topological":
        return along[None, :]
    if mode == "middle_out":
        twice_from_middle = np.abs(2 * np.arange(len(along)) + 1 - 2 * (len(along) // 2))
        return along[np.argsort(twice_from_middle, kind="stable")][None, :]
    units = np.arange(problem.num_units, dtype=np.int32)
    return rng.permuted(np.tile(units, (num_samples, 1)), axis=1)


def orders_from(
    problem: PlacementProblem,
    orders: Visiting | IntArray,
    rng: np.random.Generator,
    num_samples: int,
    start: Domains,
) -> IntArray:
    """Returns the caller's orders, or those of a mode [S or 1, U].

    For ``most_constrained`` the smallest initial domains come first. Afterwards the kernels
    prefer units with two chips (``next_open``).
    """
    if not isinstance(orders, str):
        return _checked_orders(problem, orders, num_samples)
    visiting = visiting_orders(problem, orders, rng, num_samples)
    if orders != "most_constrained":
        return visiting
    size = (start.upper - start.lower)[visiting]
    return np.take_along_axis(visiting, np.argsort(size, axis=1, kind="stable"), axis=1)


def _checked_orders(problem: PlacementProblem, orders: IntArray, num_samples: int) -> IntArray:
    given = np.atleast_2d(np.ascontiguousarray(orders, dtype=np.int32))
    wanted = np.broadcast_to(np.arange(problem.num_units), (len(given), problem.num_units))
    if len(given) not in (1, num_samples) or not np.array_equal(np.sort(given, axis=1), wanted):
        raise InvalidInputError(
            f"orders must hold every unit once in each of 1 or {num_samples} rows.", field="orders"
        )
    return given
