"""One harness for every rival: a sample is an evaluation, and nothing else tells a method costs.

Two regimes, kept apart. ``black_box``: only the evaluator knows what a plan costs, as on
hardware; no method may slice by cost. ``order_slice``: a method proposes an order (and
kernels) and the exact slicer, which reads the cost tables, places them.

Axes: ``B`` plans, ``N`` ops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from go_opt.env import evaluate_batch
from go_opt.env.evaluation import Evaluate, Plans
from go_opt.solver.orders.instance import Instance

Regime = Literal["black_box", "order_slice"]


def analytical(instance: Instance) -> Evaluate:
    """The analytical model as an evaluator; it judges memory, the static rules are the solver's."""

    def evaluate(placement: Plans, order: Plans, fusion_group: Plans) -> NDArray[np.float64]:
        terms = evaluate_batch(instance.tables, placement, order, fusion_group)
        return np.where(terms.fits, terms.interval_s, np.inf)

    return evaluate


class Samples:
    """Evaluations a method may spend, what each of them answered, and the best plan."""

    def __init__(self, evaluate: Evaluate, evaluations: int) -> None:
        self._evaluate = evaluate
        self._evaluations = evaluations
        self._answers: list[float] = []
        self.best: tuple[NDArray[np.int32], ...] | None = None  # placement, order, fusion_group

    @property
    def left(self) -> int:
        return self._evaluations - len(self._answers)

    def __call__(self, placement: Plans, order: Plans, fusion_group: Plans) -> NDArray[np.float64]:
        """[B] interval_s of the plans; at most as many as are left."""
        assert len(placement) <= self.left, f"{len(placement)} plans, {self.left} evaluations left"
        best_s = min(self._answers, default=np.inf)
        interval_s = self._evaluate(placement, order, fusion_group)
        self._answers += interval_s.tolist()
        i = int(np.argmin(interval_s))
        if interval_s[i] < best_s:
            self.best = (placement[i].copy(), order[i].copy(), fusion_group[i].copy())
        return interval_s

    def one(
        self, placement: NDArray[np.int32], order: NDArray[np.int32], fusion_group: NDArray[np.int32]
    ) -> float:
        """Interval_s of one plan ([N] each)."""
        return float(self(placement[None], order[None], fusion_group[None])[0])

    def curve_s(self) -> NDArray[np.float64]:
        """[evaluations] best so far; a method with nothing left to try stays where it is."""
        answers = np.full(self._evaluations, np.inf)
        answers[: len(self._answers)] = self._answers
        return np.minimum.accumulate(answers)


@dataclass(frozen=True, eq=False)
class Run:
    """What one method reached on one instance."""

    curve_s: NDArray[np.float64]  # [evaluations] best interval so far, infinite before the first
    spent: int  # evaluations the method made use of
    best: tuple[NDArray[np.int32], ...] | None  # placement, order, fusion_group; None: no valid plan


@dataclass(frozen=True)
class Method:
    """A rival: how it searches, and what it may know."""

    name: str
    regime: Regime
    search: Callable[[Instance, Samples, int], None]  # spends the samples; the int is the seed

    def run(self, instance: Instance, evaluations: int, seed: int, evaluate: Evaluate | None = None) -> Run:
        """The best-so-far curve; by the analytical model where no evaluator is given."""
        samples = Samples(evaluate or analytical(instance), evaluations)
        self.search(instance, samples, seed)
        return Run(samples.curve_s(), evaluations - samples.left, samples.best)
