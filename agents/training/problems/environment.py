"""The interface of environments, which evaluate plans: a model, a simulator, a service, hardware.

A trainer opens one session for a graph on a target and evaluates plans batch by batch. Environments
are third-party code: they are used only through :func:`open_session`, which turns failures
and invalid answers into :class:`~go_opt.errors.EnvironmentFailedError`.

Axes: ``B`` plans, ``N`` ops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from itertools import count
from types import TracebackType
from typing import Final, Protocol, runtime_checkable

import numpy as np

from go_opt.agents.training.problems.cases import Case
from go_opt.common.arrays import BoolArray, FloatArray
from go_opt.env import CostTables, Target, cost_tables, evaluate_plan
from go_opt.env.copies.splits import planned_graph
from go_opt.env.evaluation import Plans, objectives_s
from go_opt.env.model.metrics import Fidelity, Objective, check_fidelity, check_objective, objective_s
from go_opt.errors import EnvironmentFailedError, GoOptError, InvalidInputError
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.solver import greedy_slicing
from go_opt.solver.orders.instance import OrderProblem

MAX_REASON_CHARS: Final = 300  # of a foreign error within our sentence


@dataclass(frozen=True, eq=False)
class Evaluations:
    """An environment's answer to a batch of plans."""

    objective_s: FloatArray  # [B] interval or makespan, by the objective; infinite where invalid
    valid: BoolArray  # [B] True where activations fit every chip, and the plan runs
    chip_s: FloatArray | None = None  # [B, D] seconds of each chip for an inference; NaN where not seen
    memory_share: FloatArray | None = None  # [B] activations over memory of the fullest chip, above 1: no fit


class Session(Protocol):
    """A graph on a target, ready to be evaluated; several threads may ask at once."""

    def evaluate(self, placement: Plans, order: Plans, fusion_group: Plans) -> Evaluations:
        """Evaluate the plans ([B, N] each), in their order."""
        ...

    def close(self) -> None:
        """Release the session's resources; no calls follow."""
        ...


@runtime_checkable
class PlanSession(Session, Protocol):
    """A session that also evaluates plans with replicated stages and relays."""

    def evaluate_plans(self, plans: Sequence[Plan]) -> Evaluations:
        """Evaluate the plans, in their order."""
        ...


class Environment(Protocol):
    """An evaluator of plans: the analytical model, the simulator, a service, or hardware."""

    def open(self, graph: Graph, target: Target) -> Session:
        """Get ready to evaluate plans of ``graph`` on ``target``."""
        ...


@dataclass(frozen=True)
class LocalEnvironment:
    """The analytical model or the simulator in this process, asked for what ``objective`` minimises.

    ``workers`` threads share each batch, those of all sessions together; the answers are the
    same for any number of them.
    """

    fidelity: Fidelity = "analytical"
    workers: int = 1
    objective: Objective = "throughput"

    def __post_init__(self) -> None:
        check_fidelity(self.fidelity)
        check_objective(self.objective)
        if self.workers < 1:
            raise InvalidInputError(f"workers is {self.workers}, must be at least 1.", field="workers")

    def open(self, graph: Graph, target: Target) -> Session:
        evaluate = partial(self._evaluate, graph, target, cost_tables(graph, target))
        of_plan = partial(self._of_plan, graph, target)
        if self.workers == 1:
            return _LocalSession(evaluate, partial(map, of_plan))
        return _LocalSession(partial(self._shared, evaluate), partial(self._pool.map, of_plan))

    def _evaluate(self, graph: Graph, target: Target, tables: CostTables, *plans: Plans) -> Evaluations:
        if self.fidelity == "simulated":
            # The simulator loads where it is asked for.
            from go_opt.env.simulator.simulate import VALID, simulate_batch

            ran = simulate_batch(graph, target, *plans)
            valid = ran.outcome == VALID
            return Evaluations(np.where(valid, objective_s(ran, self.objective), np.inf), valid)
        reached_s, terms = objectives_s(tables, self.objective, *plans)
        share = (terms.peak_bytes / np.maximum(tables.sram_bytes, 1)).max(axis=1)
        return Evaluations(np.where(terms.fits, reached_s, np.inf), terms.fits, memory_share=share)

    def _of_plan(self, graph: Graph, target: Target, plan: Plan) -> tuple[float, FloatArray]:
        """Seconds of one plan, infinite where it is not valid, and of its chips."""
        on_graph = planned_graph(graph, plan)
        metrics = evaluate_plan(on_graph, target, plan, fidelity=self.fidelity)
        return objective_s(metrics, self.objective) if metrics.valid else math.inf, metrics.compute_s

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.workers, thread_name_prefix="evaluate")

    def _shared(self, evaluate: _Evaluator, *plans: Plans) -> Evaluations:
        """What ``evaluate`` says of ``plans``, cut into a part for each worker."""
        num_parts = max(1, min(len(plans[0]), self.workers))
        parts = list(self._pool.map(evaluate, *(np.array_split(array, num_parts) for array in plans)))
        shares = [each.memory_share for each in parts if each.memory_share is not None]
        reached_s, valid = (np.concatenate([getattr(e, n) for e in parts]) for n in ("objective_s", "valid"))
        return Evaluations(reached_s, valid, None, np.concatenate(shares) if shares else None)


class CheckedSession:
    """A session with checks of its contract: plans and answers have the required shapes, and
    every valid plan has a positive, finite time. A context manager that closes the session.
    """

    def __init__(self, session: Session, name: str, num_ops: int) -> None:
        self._session = session
        self._name = name  # begins the sentence of an error
        self._num_ops = num_ops
        self._batches = count(1)
        self._is_open = True

    def evaluate(self, placement: Plans, order: Plans, fusion_group: Plans) -> Evaluations:
        """Evaluate the plans ([B, N] each), in their order; the arrays answered are the caller's.

        Raises:
          EnvironmentFailedError: the environment failed or answered nonsense.
          InvalidInputError: the plans are not of ``N`` ops each, or not equally many.
        """
        self._check_plans(placement, order, fusion_group)
        ask = partial(self._session.evaluate, placement, order, fusion_group)
        return self._checked(ask, len(placement))

    @property
    def takes_plans(self) -> bool:
        """Whether :meth:`evaluate_plans` is served."""
        return isinstance(self._session, PlanSession)

    def evaluate_plans(self, plans: Sequence[Plan]) -> Evaluations:
        """Evaluate plans that may have replicated stages and relays, in their order.

        Raises:
          EnvironmentFailedError: the environment failed, answered nonsense or serves no such plans.
        """
        if not isinstance(self._session, PlanSession):
            raise EnvironmentFailedError(f"{self._name} evaluates no replicated stages and relays.")
        return self._checked(partial(self._session.evaluate_plans, plans), len(plans))

    def _checked(self, ask: Callable[[], Evaluations], num_plans: int) -> Evaluations:
        batch = next(self._batches)
        if not self._is_open:
            raise EnvironmentFailedError(f"{self._name} was closed before batch {batch}.")
        try:
            said = ask()
            reached_s = np.asarray(said.objective_s).astype(np.float64, casting="same_kind")
            valid = np.asarray(said.valid).astype(np.bool_, casting="no")
            more = (said.chip_s, said.memory_share)
            floats = (None if each is None else np.asarray(each, np.float64) for each in more)
            answer = Evaluations(reached_s, valid, *floats)
        except Exception as cause:
            raise EnvironmentFailedError(
                f"{self._name} failed at batch {batch}: {_reason(cause)}."
            ) from cause
        if nonsense := _nonsense(answer, num_plans):
            raise EnvironmentFailedError(f"{self._name} answered nonsense at batch {batch}: {nonsense}.")
        return replace(answer, objective_s=np.where(answer.valid, answer.objective_s, np.inf))

    def close(self) -> None:
        """Close the session; once closed, do nothing.

        Raises:
          EnvironmentFailedError: the environment failed.
        """
        if not self._is_open:
            return
        self._is_open = False
        try:
            self._session.close()
        except Exception as cause:
            raise EnvironmentFailedError(f"{self._name} failed to close: {_reason(cause)}.") from cause

    def __enter__(self) -> CheckedSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except EnvironmentFailedError:
            if kind is None:  # else what failed first is what the caller must see
                raise

    def _check_plans(self, placement: Plans, order: Plans, fusion_group: Plans) -> None:
        shape = (len(placement), self._num_ops)
        fields = {"placement": placement, "order": order, "fusion_group": fusion_group}
        for field, array in fields.items():
            if array.shape != shape:
                raise InvalidInputError(f"{field} has shape {array.shape}, must be {shape}.", field=field)


def open_session(environment: Environment, graph: Graph, target: Target) -> CheckedSession:
    """Open ``environment`` for a graph on a target; close what it returns.

    Raises:
      EnvironmentFailedError: the environment cannot be opened.
    """
    name = f"{type(environment).__name__} for {graph.name!r} on {target.name!r}"
    try:
        session = environment.open(graph, target)
    except Exception as cause:
        raise EnvironmentFailedError(f"{name} cannot be opened: {_reason(cause)}.") from cause
    return CheckedSession(session, name, graph.num_ops)


def environment_name(environment: Environment) -> str:
    """What tells one kind of environment from another, for records: its class, fidelity and objective."""
    name, fidelity = type(environment).__name__, getattr(environment, "fidelity", None)
    if isinstance(environment, LocalEnvironment):
        name = environment.fidelity
    elif fidelity is not None:
        name = f"{name} ({fidelity})"
    return f"{name}, latency" if getattr(environment, "objective", None) == "latency" else name


def greedy_objective_s(session: Session, on_target: OrderProblem) -> float:
    """Of the compiler's greedy plan, by the environment of ``session``; infinite where not valid."""
    order, group = on_target.order, on_target.fusion_group
    greedy = greedy_slicing(on_target.tables, order, group, adjacent=on_target.is_adjacent)
    answer = session.evaluate(greedy.placement[None], order[None], group[None])
    return float(answer.objective_s[0]) if answer.valid[0] else math.inf


_Evaluator = Callable[..., Evaluations]  # (placement, order, fusion_group), [B, N] each


@dataclass(frozen=True, eq=False)
class _LocalSession:
    _evaluate: _Evaluator
    _of_plans: Callable[[Sequence[Plan]], Iterable[tuple[float, FloatArray]]]

    def evaluate(self, placement: Plans, order: Plans, fusion_group: Plans) -> Evaluations:
        # A kernel compiles once more for arrays of any other type or layout.
        plans = (np.require(array, np.int32, ["C", "A", "W"]) for array in (placement, order, fusion_group))
        return self._evaluate(*plans)

    def evaluate_plans(self, plans: Sequence[Plan]) -> Evaluations:
        answers = list(self._of_plans(plans))
        reached_s = np.array([seconds for seconds, _ in answers], dtype=np.float64)
        chip_s = np.array([seconds for _, seconds in answers]) if answers else None
        return Evaluations(reached_s, np.isfinite(reached_s), chip_s)

    def close(self) -> None:
        """Nothing is held."""


def _reason(cause: Exception) -> str:
    """A foreign error within a sentence: one line, without a full stop."""
    text = " ".join(str(cause).split()).rstrip(".")
    if not isinstance(cause, GoOptError):
        text = f"{type(cause).__name__}: {text}" if text else type(cause).__name__
    return text if len(text) <= MAX_REASON_CHARS else f"{text[:MAX_REASON_CHARS]}…"


def _nonsense(answer: Evaluations, num_plans: int) -> str:
    """What is wrong with an answer; empty where nothing is."""
    reached_s, valid, chip_s, share = (getattr(answer, field.name) for field in fields(answer))
    for name, array in (("objective_s", reached_s), ("valid", valid)):
        if array.shape != (num_plans,):
            return f"{name} has shape {array.shape}, must be ({num_plans},)"
    is_bad = valid & ~((reached_s > 0) & (reached_s < np.inf))
    if is_bad.any():
        plan = int(np.argmax(is_bad))
        return f"objective_s of plan {plan} is {reached_s[plan]}, must be positive and finite where valid"
    if chip_s is not None and (chip_s.ndim != 2 or len(chip_s) != num_plans or (chip_s < 0).any()):
        return "chip_s must be seconds of every plan and chip, not below zero"
    if share is not None and (share.shape != (num_plans,) or not (np.isfinite(share) & (share >= 0)).all()):
        return "memory_share must be a finite number of every plan, not below zero"
    return ""


class Sessions:
    """Sessions of the cases of the last step; sessions of repeated cases are reused."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._open: dict[int, tuple[Case, CheckedSession]] = {}

    def __enter__(self) -> Sessions:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.open([])
        except EnvironmentFailedError:
            if kind is None:  # else what failed first is what the caller must see
                raise

    def open(self, cases: Sequence[Case]) -> list[CheckedSession]:
        wanted = {id(case) for case in cases}
        with ExitStack() as closing:  # all, whichever fails
            for key in self._open.keys() - wanted:
                closing.callback(self._open.pop(key)[1].close)
        for case in cases:
            if id(case) not in self._open:
                session = open_session(self._environment, case.instance.graph, case.instance.target)
                self._open[id(case)] = (case, session)
        return [self._open[id(case)][1] for case in cases]
