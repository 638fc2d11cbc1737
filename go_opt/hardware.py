"""Serves your own hardware, or anything else that measures a plan, as an environment."""

from __future__ import annotations

import math
import statistics
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from go_opt.agents.training.problems.environment import Evaluations
from go_opt.env import Target
from go_opt.env.evaluation import Plans
from go_opt.env.model.metrics import Objective, check_objective
from go_opt.errors import EnvironmentFailedError, InvalidInputError
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate, Plan
from go_opt.service.transport.address import DEFAULT_ADDRESS

# gRPC loads when something is served, not when this module is imported.
if TYPE_CHECKING:
    from go_opt.service.calls.security import Security
    from go_opt.service.environment.environment_service import SessionLimits
    from go_opt.service.observability import Observability


class Measured(NamedTuple):
    """A measurement with the time of each chip, from which ``go-opt calibrate`` learns far more."""

    seconds: float  # what Hardware.evaluate returns without chip_s
    chip_s: Sequence[float]  # [D] compute seconds of each chip per inference, without transfers


class Hardware(Protocol):
    """Measures plans."""

    def evaluate(self, graph: Graph, target: Target, plan: Plan) -> float | Measured | None:
        """Returns the seconds between two inferences in steady state; None if this plan does not run.

        With objective ``latency``, returns the seconds of one inference that runs alone.
        An exception means that the hardware itself failed.
        """


@dataclass(frozen=True, eq=False)
class HardwareEnvironment:
    """Hardware as an :class:`~go_opt.agents.training.problems.environment.Environment`.

    Args:
      repeats: measurements of each plan; the median counts.
      at_once: plans measured at the same time, each in its own thread.
      objective: ``throughput`` measures intervals, ``latency`` makespans.
    """

    hardware: Hardware
    repeats: int = 1
    at_once: int = 1
    objective: Objective = "throughput"
    _free: threading.Semaphore = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_objective(self.objective)
        for name in ("repeats", "at_once"):
            if getattr(self, name) < 1:
                raise InvalidInputError(f"{name} is {getattr(self, name)}, must be at least 1.", field=name)
        object.__setattr__(self, "_free", threading.Semaphore(self.at_once))

    def open(self, graph: Graph, target: Target) -> HardwareSession:
        """Prepare to measure plans of ``graph`` on ``target``."""
        return HardwareSession(self, graph, target)

    def measured(self, graph: Graph, target: Target, plan: Plan) -> Measured | None:
        """The median measurements; None if the plan does not run. Unmeasured chips are NaN."""
        measured = []
        for _ in range(self.repeats):
            with self._free:
                answer = self.hardware.evaluate(graph, target, plan)
            if answer is None:
                return None
            unseen = [math.nan] * target.num_chips
            seconds, chip_s = answer if isinstance(answer, tuple) else (answer, unseen)
            if not 0 < seconds < math.inf:
                raise EnvironmentFailedError(f"a plan was measured to take {seconds} s.")
            if len(chip_s) != target.num_chips:
                raise EnvironmentFailedError(f"{len(chip_s)} chips of {target.num_chips} were measured.")
            measured.append((float(seconds), np.asarray(chip_s, np.float64)))
        chips = np.median([chip_s for _, chip_s in measured], axis=0)
        return Measured(statistics.median(seconds for seconds, _ in measured), chips.tolist())


@dataclass(frozen=True, eq=False)
class HardwareSession:
    """Measures plans of one graph on one target."""

    environment: HardwareEnvironment
    graph: Graph
    target: Target

    def evaluate(self, placement: Plans, order: Plans, fusion_group: Plans) -> Evaluations:
        """Measure the plans ([B, N] each), one after the other."""
        rows = zip(placement, order, fusion_group, strict=True)
        candidates = (Candidate("to be measured", *row) for row in rows)
        return self.evaluate_plans([one.plan(self.graph, self.target) for one in candidates])

    def evaluate_plans(self, plans: Sequence[Plan]) -> Evaluations:
        """Measure the plans, one after the other."""
        measured = [self.environment.measured(self.graph, self.target, plan) for plan in plans]
        unseen = [math.nan] * self.target.num_chips
        return Evaluations(
            np.array([math.inf if each is None else each.seconds for each in measured], dtype=np.float64),
            np.array([each is not None for each in measured], dtype=np.bool_),
            np.array([unseen if each is None else each.chip_s for each in measured], dtype=np.float64),
        )

    def close(self) -> None:
        """Does nothing: a session holds no resources."""


def serve_environment(
    hardware: Hardware,
    address: str = DEFAULT_ADDRESS,
    *,
    repeats: int = 1,
    at_once: int = 1,
    objective: Objective = "throughput",
    insecure: bool = False,
    security: Security | None = None,
    observability: Observability | None = None,
    limits: SessionLimits | None = None,
) -> None:
    """Serve ``hardware`` as ``go_opt.v1.Environment`` until SIGTERM or SIGINT.

    Args:
      address: ``HOST:PORT``; port 0 picks a free port. Printed on stderr once the service listens.
      repeats: measurements of each plan; the median counts.
      at_once: plans measured at the same time, each in its own thread.
      objective: ``throughput`` measures intervals, ``latency`` makespans.
      insecure: allow an address that other machines can reach; short for ``Security(insecure=True)``.
      security: certificates and tokens.
      observability: metrics and logs.
      limits: limits on the sessions that clients may hold.

    Raises:
      InvalidInputError: an argument is out of range, or the address is busy or not allowed.
    """
    from go_opt.service.calls.security import Security
    from go_opt.service.environment.environment_service import EnvironmentService
    from go_opt.service.server import serve

    if security is not None and insecure:
        raise InvalidInputError("insecure belongs in the security, do not give both.", field="insecure")
    environment = HardwareEnvironment(hardware, repeats, at_once, objective)
    serve(
        address,
        lambda: [EnvironmentService({("hardware", objective): environment}, limits=limits)],
        security=security or Security(insecure=insecure),
        observability=observability,
        workers=at_once,
    )
