"""Placement as a Gymnasium environment: an episode places the kernels of a graph one by one.

    environment = gymnasium.make(
        "go_opt.gymnasium_environment:GoOpt/Placement-v0", graph="zoo:din", target="mcm-2x2"
    )

The order and the kernels are the default ones. An action chooses the chip of the next kernel, among
the chips that the solver still allows. The solver undoes a choice that leads to a dead end, and
the episode asks for that kernel again, so every complete placement keeps the rules. The last
kernel earns the reward. Needs the extra ``gymnasium``. ``gymnasium.make`` takes names and paths
only; pass your own graphs and environments to :class:`PlacementEnv`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from go_opt.agents.inputs.features import NUM_OP_TYPES, chip_features, graph_features
from go_opt.agents.training.problems.cases import reference_interval_s
from go_opt.agents.training.problems.environment import Environment, greedy_objective_s, open_session
from go_opt.api.inputs import as_loaded, as_target
from go_opt.common.arrays import BoolArray
from go_opt.env import INVALID_REWARD, Target, cost_tables
from go_opt.env.reward import reward
from go_opt.errors import InfeasibleError, InvalidInputError
from go_opt.extras import check_installed
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate, Plan
from go_opt.solver import Solver, placement_problem, rule_tables
from go_opt.solver.orders.instance import instance
from go_opt.solver.propagation.modes import MAX_BACKTRACKS
from go_opt.training import as_environment

try:
    import gymnasium
    from gymnasium import spaces
except ModuleNotFoundError:
    check_installed("go_opt.gymnasium_environment", "gymnasium")
    raise

ID: Final = "GoOpt/Placement-v0"
_UNDECIDED: Final = -1
_LARGEST_FEATURE: Final = 1e6  # far above every real feature
Observation = dict[str, Any]  # arrays


class PlacementEnv(gymnasium.Env[Observation, np.int64]):
    """One graph on one target. Axes: ``N`` ops, ``E`` edges, ``D`` chips.

    Fixed observations are the policy's features: ``ops`` [N, …], ``op_type`` [N], ``edges`` [E, 2],
    ``chips`` [D, …] and ``package``. Three more show progress: ``placement`` [N], -1 where
    undecided; ``is_next`` [N], the ops of the kernel to be placed; and ``action_mask`` [D].
    The reward of the last step is ``ln(greedy interval / interval)``. An episode also ends after a
    chip that is not allowed, or after too many backtracks. Its reward is then that of an invalid
    plan, and ``info`` has a ``reason``.

    Args:
      graph, target: as :func:`go_opt.finetune` takes them.
      environment: evaluates plans, also as in :func:`go_opt.finetune`: ``analytical``, ``simulated``,
        the ``HOST:PORT`` of a service, or your own object.
      max_backtracks: choices that the solver may undo in one episode.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (as gymnasium declares it)

    def __init__(
        self,
        graph: Graph | str | Path,
        target: Target | str | Path = "mcm-6x6",
        environment: str | Environment = "analytical",
        *,
        max_backtracks: int = MAX_BACKTRACKS,
    ) -> None:
        if max_backtracks < 0:
            raise InvalidInputError(
                f"max_backtracks is {max_backtracks}, must be 0 or more.", field="max_backtracks"
            )
        self.graph, self.target = as_loaded(graph), as_target(target)
        self.plan: Plan | None = None  # of the last complete episode
        self._max_backtracks = max_backtracks
        self._instance = instance(self.graph, self.target)
        self._problem = placement_problem(self.graph, self.target, self._instance.fusion_group)
        self._tables = rule_tables(self._problem)
        self._solver = self._new_solver()
        self._fixed = _fixed_observations(self.graph, self.target)
        self._has_ended = True
        num_ops, num_chips = self.graph.num_ops, self.target.num_chips
        self.action_space = spaces.Discrete(num_chips)
        self.observation_space = spaces.Dict(
            {
                **{name: _space(name, array) for name, array in self._fixed.items()},
                "placement": spaces.Box(_UNDECIDED, num_chips - 1, (num_ops,), np.int32),
                "is_next": spaces.MultiBinary(num_ops),
                "action_mask": spaces.MultiBinary(num_chips),
            }
        )
        self._session = open_session(as_environment(environment, 1), self.graph, self.target)
        by_environment_s = greedy_objective_s(self._session, self._instance)
        self.reference_interval_s = (
            by_environment_s if math.isfinite(by_environment_s) else reference_interval_s(self._instance)
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start with nothing placed; the seed changes nothing."""
        super().reset(seed=seed, options=options)
        self._solver, self._has_ended = self._new_solver(), False
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Place the next kernel on a chip.

        Raises:
          EnvironmentFailedError: the environment failed to evaluate the finished plan.
        """
        if self._has_ended:
            raise InvalidInputError("the episode has ended; reset it.")
        if not self.action_masks()[action]:
            return self._end(INVALID_REWARD, reason=f"chip {action} is not open to the kernel.")
        if self._solver.set_domain(self._next_unit, int(action)) < 0:
            return self._end(INVALID_REWARD, reason=f"{self._max_backtracks} choices were taken back.")
        if not self._solver.is_complete:
            return self._observation(), 0.0, False, False, {}
        placement = self._solver.placement[self._problem.unit_of_op]
        order, group = self._instance.order, self._instance.fusion_group
        answer = self._session.evaluate(placement[None], order[None], group[None])
        self.plan = Candidate("gymnasium", placement, order, group).plan(self.graph, self.target)
        earned = float(reward(answer.objective_s, answer.valid, self.reference_interval_s)[0])
        return self._end(earned, interval_s=float(answer.objective_s[0]))

    def action_masks(self) -> BoolArray:
        """[D] True where the next kernel may go; libraries with masked policies call this name."""
        mask = np.zeros(self.target.num_chips, dtype=np.bool_)
        mask[self._solver.get_domain(self._next_unit)] = True
        return mask

    def close(self) -> None:
        """Close the session of the environment."""
        self._session.close()

    @property
    def _next_unit(self) -> int:
        """The first undecided kernel in the order, or the last kernel if all are decided."""
        units = self._problem.topological
        return int(units[min(self._solver.num_decisions, len(units) - 1)])

    def _new_solver(self) -> Solver:
        solver = Solver(self._tables, max_backtracks=self._max_backtracks)
        if solver.is_exhausted:
            raise InfeasibleError(
                f"graph {self.graph.name!r} has no placement on {self.target.name!r} that keeps its rules."
            )
        return solver

    def _end(self, earned: float, **info: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self._has_ended = True
        return self._observation(), earned, True, False, info

    def _observation(self) -> Observation:
        is_decided = self._solver.store.size == 1  # by a choice, or because one chip is left
        placement = np.where(is_decided, self._solver.placement, np.int32(_UNDECIDED))
        return {
            **{name: array.copy() for name, array in self._fixed.items()},
            "placement": placement[self._problem.unit_of_op],
            "is_next": (self._problem.unit_of_op == self._next_unit).astype(np.int8),
            "action_mask": self.action_masks().astype(np.int8),
        }


def _fixed_observations(graph: Graph, target: Target) -> Observation:
    """The observations that stay constant in an episode, indexed by op rather than by row."""
    features = graph_features(graph, target)
    ops, op_type = np.empty_like(features.ops), np.empty_like(features.op_type)
    ops[features.row_op], op_type[features.row_op] = features.ops, features.op_type
    return {
        "ops": ops,
        "op_type": op_type,
        "edges": np.stack([graph.edge_src, graph.edge_dst], axis=1).astype(np.int32),
        "chips": chip_features(cost_tables(graph, target), target).astype(np.float32),
        "package": features.package,
    }


def _space(name: str, array: NDArray) -> spaces.Box:
    if array.dtype == np.float32:
        return spaces.Box(-_LARGEST_FEATURE, _LARGEST_FEATURE, array.shape, np.float32)
    last = NUM_OP_TYPES - 1 if name == "op_type" else int(array.max(initial=0)) + 1
    return spaces.Box(0, last, array.shape, np.int32)


gymnasium.register(id=ID, entry_point=f"{__name__}:{PlacementEnv.__name__}")
