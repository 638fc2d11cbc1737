"""When nothing is to be expected of a search any more."""

from __future__ import annotations

import math
from typing import Final

from go_opt.result import Request
from go_opt.search.shared.context import Context

NOTABLE: Final = 1e-3  # relative gain of the objective or the bound
LEAST_S: Final = 0.3  # without a gain, until a search ends
LEAST: Final = 200  # evaluations, likewise
CLOSE: Final = 0.01  # gap of a plan that can gain next to nothing more


class Gains:
    """When a search last gained ``NOTABLE``."""

    def __init__(self, request: Request, context: Context) -> None:
        self._request, self._context = request, context
        self._began_s = self._gained_s = context.elapsed_s
        self._gained = 0  # evaluations until then
        self._objective_s, self._bound_s = math.inf, 0.0
        self._pending = 0

    def note(self, objective_s: float, bound_s: float, evaluations: int, pending: int | None = None) -> None:
        """What is reached after so many evaluations.

        Args:
          pending: of these, those of an attempt that shows its result at its end; None: as before.
        """
        self._pending = self._pending if pending is None else pending
        if objective_s < self._objective_s * (1 - NOTABLE) or bound_s > self._bound_s * (1 + NOTABLE):
            self._objective_s, self._bound_s = objective_s, bound_s
            self._gained_s, self._gained = self._context.elapsed_s, evaluations

    def are_over(self, evaluations: int) -> bool:
        """Whether as much was spent since the last gain as before it, and at least ``LEAST``.

        While the plan may be far from the best one, an attempt has not failed before its end. With a
        limit on evaluations only they count, so that equal limits give equal answers.
        """
        barren = evaluations - self._gained
        if self._objective_s > self._bound_s * (1 + CLOSE):
            barren -= self._pending
        if not self._request.early_end or barren < LEAST:
            return False
        if self._request.max_evaluations is not None:
            return barren >= self._gained
        barren_s = self._context.elapsed_s - self._gained_s
        return barren_s >= max(LEAST_S, self._gained_s - self._began_s)
