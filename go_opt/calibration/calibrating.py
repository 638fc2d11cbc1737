"""The loop of a calibration: choose a plan, measure it, fit the target to all measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from go_opt.agents.training.problems.environment import CheckedSession, Environment, open_session
from go_opt.api.searching import optimize
from go_opt.calibration.chip_fit import ChipFigures, ChipFit, observe
from go_opt.calibration.package_fit import AT_BEST, Factors, fit_package, scaled
from go_opt.calibration.samples import Sample, by_plan, fastest, noise, read_samples, write_samples
from go_opt.env import Target, parse_target
from go_opt.env.target.kinds import ANALYTICAL_EFFECTS
from go_opt.env.target.toml import target_to_toml
from go_opt.errors import InfeasibleError, InvalidInputError
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan

EVALUATIONS: Final = 20  # of the search for one plan
_FIT_AGAIN: Final = 1.25  # at this multiple of the last fit's samples
_MOST_SEEN: Final = 64  # samples that a fit uses at most, evenly spaced
_HOTTER: Final = 4.0  # factor on the temperature if a plan was measured already
_TRIES: Final = 4
_FOLDS: Final = 4
# Each such measurement is of the fastest plan again, until it has so many. With 5 and 15 % noise (four
# graphs, 12 samples, three seeds) plans are as fast as without this, and said to be 2 and 5 % faster than
# they are, not 5 and 16 %.
_AGAIN: Final = 4
_MEASURED: Final = 3


@dataclass(frozen=True, eq=False)
class Learned:
    """The results of a calibration from some samples."""

    num_samples: int
    package: Target  # the target with fitted links, host and memory
    chips: ChipFit | None  # None if no sample runs
    knows_prefetch: bool  # samples determine whether all weights stream ahead

    @property
    def target(self) -> Target:
        """The target that fits the samples best."""
        return self.package if self.chips is None else _with_figures(self.package, self.chips.best()[0][1])

    def drawn(self, rng: np.random.Generator, temperature: float) -> Target:
        """A target drawn by its probability to the power of 1 / ``temperature``; 0: the best.

        If samples do not determine whether weights stream ahead, half of the targets are the best that could
        be: they do, and buffers take little memory.
        """
        if self.chips is None or temperature == 0:
            return self.target
        package = self.package
        if not self.knows_prefetch:
            package = scaled(package, AT_BEST if rng.integers(2) else Factors(prefetch=False))
        return _with_figures(package, self.chips.drawn(rng, temperature))


class Calibration:
    """A graph on a target, and the machine that measures its plans.

    Args:
      target: the target of the plans, from which the fit starts; has one kind of chip.
      samples: the file of samples.
      machine: the target that the environment opens the graph on; default: ``target``.
      machine_name: identifies the machine in the file.

    Raises:
      InvalidInputError: the target has several kinds of chips, or the file is invalid or
        belongs to another machine, graph or target.
    """

    def __init__(
        self,
        graph: Graph,
        target: Target,
        environment: Environment,
        samples: Path,
        *,
        machine: Target | None = None,
        machine_name: str = "",
        seed: int = 0,
    ) -> None:
        if len(target.kinds) > 1:
            raise InvalidInputError(
                f"target {target.name!r} has {len(target.kinds)} kinds of chips; calibrate takes one.",
                field="target",
            )
        self._graph, self._target, self._environment = graph, target, environment
        self._machine, self._machine_name, self._path = machine or target, machine_name, samples
        self._seed = seed
        self.samples = read_samples(samples, machine_name, graph, target)

    @property
    def best(self) -> Sample:
        """The fastest measured plan (:func:`fastest`); an error without samples."""
        return fastest(self.samples)

    def run(self, number: int, should_stop: Callable[[], bool] = lambda: False) -> Iterator[Learned]:
        """Measure until there are ``number`` samples; yields the results at the start and after each.

        Raises:
          EnvironmentFailedError: the machine failed.
        """
        learned = self.learned()
        if self.samples:
            yield learned
        if len(self.samples) >= number:
            return
        with open_session(self._environment, self._graph, self._machine) as session:
            while len(self.samples) < number and not should_stop():
                self.samples.append(self._measured(session, self._chosen(learned)))
                write_samples(self._path, self._machine_name, self.samples)
                if len(self.samples) >= min(number, _FIT_AGAIN * learned.num_samples):
                    learned = self.learned()
                yield learned

    def learned(self) -> Learned:
        """The results from all samples so far."""
        samples = self.samples[:: -(-len(self.samples) // _MOST_SEEN) or 1]
        chips = self._fitted(samples)
        likeliest = self._target if chips is None else _with_figures(self._target, chips.best()[0][1])
        factors = fit_package(self._graph, likeliest, samples)
        package = scaled(self._target, factors)
        return Learned(len(self.samples), package, chips, factors.prefetch is not None)

    def error(self) -> float | None:
        """Mean relative error of predicted chip seconds of every fourth plan, fitted to the others.

        None for too few samples.
        """
        samples = [same[-1] for same in by_plan(self.samples)]
        held, rest = samples[1::_FOLDS], [s for i, s in enumerate(samples) if i % _FOLDS != 1]
        chips = self._fitted(rest)
        held = [sample for sample in held if np.isfinite(sample.interval_s)]
        if chips is None or not held:
            return None
        seen = observe(self._graph, self._target, held)
        predicted_s = chips.predicted_s(chips.best()[0][1], seen)
        return float(np.nanmean(np.abs(predicted_s / seen.measured_s(predicted_s) - 1)))

    def text(self, learned: Learned, error: float | None = None) -> str:
        """The results, with the :meth:`error` if it is known, as the text of a target file."""
        fitted_to = f"{learned.num_samples} measured plans of {self._graph.name}"
        if error is not None:
            fitted_to += f"; chips of plans held out are {error:.1%} off"
        name = f"{self._target.name}-calibrated"
        return "# Written by `go-opt calibrate`.\n" + target_to_toml(
            replace(learned.target, name=name, fitted_to=fitted_to)
        )

    def _fitted(self, samples: Sequence[Sample]) -> ChipFit | None:
        ran = [sample for sample in samples if np.isfinite(sample.interval_s)]
        if not ran:
            return None
        chips = ChipFit(self._graph, self._target, observe(self._graph, self._target, ran))
        chips.run(self._seed)
        return chips

    def _chosen(self, learned: Learned) -> Plan:
        """A plan to measure next.

        The first is the best for the target as it is; the second has a kernel for each op and no replicated
        stages, which separates overhead, ops and chips. Then follow in turn the best for the likeliest
        target, and two for targets drawn by their probability (Thompson, 1933). If a plan was measured
        already, another target is drawn at a higher temperature. Every fourth measurement is of the fastest
        plan again, until it has three, unless the machine has shown no noise.
        """
        turn = len(self.samples)
        rng = np.random.default_rng([self._seed, turn])
        known = Counter(sample.key for sample in self.samples)
        if turn % _AGAIN == _AGAIN - 1 and noise(self.samples) != 0.0:
            best = self.best
            if np.isfinite(best.interval_s) and known[best.key] < _MEASURED:
                return best.plan
        temperature = float(len(known) % 3 > 0)
        for attempt in range(_TRIES):
            on = learned.drawn(rng, temperature)
            plan = self._plan(on, attempt, is_plain=turn == 1)
            if Sample(plan, 0.0).key not in known:
                break
            temperature = max(1.0, _HOTTER * temperature)
        return plan

    def _plan(self, on: Target, attempt: int, *, is_plain: bool) -> Plan:
        """The best plan found for the target ``on``, as a plan for our target."""
        # No plan may fit the fitted memory, or none without replicated stages.
        for target, is_open in ((on, False), (self._target, False), (self._target, True)):
            is_plain = is_plain and not is_open
            try:
                found = optimize(
                    self._graph,
                    target,
                    max_evaluations=EVALUATIONS,
                    decide="placement" if is_plain else "all",
                    # Without replicated stages plans differ more.
                    replication=is_open or (not is_plain and attempt < _TRIES - 1),
                    seed=self._seed + attempt,
                    policy=None,
                    simulate=False,
                    splits=False,
                    rewrite=False,
                )
                break
            except InfeasibleError:
                if is_open:
                    raise
        ours = self._target
        return replace(found.plan, target=ours.source, target_fingerprint=ours.fingerprint)

    def _measured(self, session: CheckedSession, plan: Plan) -> Sample:
        answer = session.evaluate_plans([replace(plan, target_fingerprint=self._machine.fingerprint)])
        chip_s = None if answer.chip_s is None or np.isnan(answer.chip_s[0]).any() else answer.chip_s[0]
        return Sample(plan, float(answer.objective_s[0]), chip_s)


def _with_figures(package: Target, figures: ChipFigures) -> Target:
    kind = figures.kind(package.kinds[0])
    changed = replace(
        package,
        kinds=(kind,),
        simulator=replace(package.simulator, kinds=(kind.simulator,)),
        analytical_effects=tuple(
            e for e in ANALYTICAL_EFFECTS if e in {*package.analytical_effects, "shapes"}
        ),
    )
    return parse_target(target_to_toml(changed), package.source.removesuffix(":paper"))
