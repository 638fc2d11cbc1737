"""Checks and converts the arguments of training: graphs, policy, lessons, environment, folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast, get_args

from go_opt.common.files import make_folder
from go_opt.common.outputs import RUN, check_output
from go_opt.env import Target, load_zoo, zoo_entries
from go_opt.env.model.metrics import Fidelity
from go_opt.env.zoo import SPLITS, Split
from go_opt.errors import InvalidInputError
from go_opt.model.graph import Graph
from go_opt.search.shared.policies import shipped_policy

# JAX loads when it is needed, not when this module is imported.
if TYPE_CHECKING:
    from go_opt.agents.policy.network import Policy
    from go_opt.agents.training.problems.environment import Environment
    from go_opt.agents.training.problems.settings import Lesson

SplitOrNone = Split | Literal["none"]


def zoo_graphs(split: SplitOrNone, target: Target, most_ops: int) -> list[Graph]:
    """The graphs of a zoo split with at most ``most_ops`` ops; only those made for ``target``, if any.

    Those with states are left out: the policy does not keep ops that touch one on one chip.
    """
    if split not in (*SPLITS, "none"):
        raise InvalidInputError(
            f"split must be one of {', '.join(SPLITS)}, none, not {split!r}.", field="split"
        )
    stateless = [entry for entry in zoo_entries() if not entry.state_bytes]
    fitting = [entry for entry in stateless if entry.split == split and entry.ops <= most_ops]
    made_for_target = [entry for entry in fitting if entry.target == target.name]
    return [load_zoo(entry.name) for entry in made_for_target or fitting]


def check_folder(folder: str | Path) -> None:
    """Create the folder of a run; raise if that fails, or if the run may not write its files there."""
    make_folder(folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidInputError(f"folder {str(folder)!r} cannot be written to.", field="folder")
    check_output("folder", folder, RUN)


def as_environment(environment: str | Environment, workers: int) -> Environment:
    """Returns the given object, a fidelity with ``workers`` threads, or the service at ``HOST:PORT``.

    Raises:
      ServiceError: nothing listens there.
    """
    from go_opt.agents.training.problems.environment import LocalEnvironment

    if not isinstance(environment, str):
        return environment
    if environment in get_args(Fidelity):
        return LocalEnvironment(cast("Fidelity", environment), workers)
    if ":" not in environment:
        raise InvalidInputError(
            f"environment must be {', '.join(get_args(Fidelity))} or HOST:PORT, not {environment[:100]!r}.",
            field="environment",
        )
    # gRPC loads where it is needed.
    from go_opt.service.environment.remote_environment import RemoteEnvironment

    return RemoteEnvironment(environment).connect()


def as_lessons(names: Iterable[str]) -> tuple[Lesson, ...]:
    """The lessons with these names, or the default lessons if there are no names."""
    from go_opt.agents.training.problems.settings import LESSONS, Settings

    lessons = []
    for name in names:
        if name not in LESSONS:
            raise InvalidInputError(
                f"lesson must be one of {', '.join(LESSONS)}, not {name!r}.", field="lessons"
            )
        lessons.append(LESSONS[name])
    return tuple(lessons) or Settings().lessons


def as_policy(policy: Policy | str | Path | None, seed: int) -> Policy:
    """Loads a policy by file or name; None or ``none`` gives an untrained policy from ``seed``."""
    from go_opt.agents.networks import PolicyConfig
    from go_opt.agents.policy.network import Policy, trainable, untrained
    from go_opt.agents.policy.policy_file import load_policy

    if isinstance(policy, Policy):
        return policy
    if policy is None or policy == "none":
        return untrained(PolicyConfig(), seed)
    return trainable(shipped_policy() if policy == "default" else load_policy(policy))


def of_any_host(should_stop: Callable[[], bool]) -> Callable[[], bool]:
    """Makes all hosts stop before the same step, because a step needs every host."""
    import jax
    import numpy as np
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return should_stop
    return lambda: bool(np.any(multihost_utils.process_allgather(np.array(should_stop()))))
