"""Training: pretrain a policy on many graphs, or finetune a policy on one graph."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast, get_args

from go_opt.api import optimize
from go_opt.api.inputs import as_loaded, as_target
from go_opt.common.files import make_folder
from go_opt.common.outputs import RUN, check_output
from go_opt.env import Target, load_zoo, zoo_entries
from go_opt.env.model.metrics import Fidelity, Objective
from go_opt.env.zoo import SPLITS, Split
from go_opt.errors import InfeasibleError, InvalidInputError
from go_opt.extras import TRAINING, check_installed
from go_opt.model.codecs.plan_json import load_plan, names_to_dict, save_plan
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate, Plan
from go_opt.result import check_seed
from go_opt.search.shared.policies import shipped_policy
from go_opt.solver.verify.verifier import verify

# JAX loads when training starts, not when this module is imported.
if TYPE_CHECKING:
    import networkx as nx

    from go_opt.agents.networks import PolicyConfig
    from go_opt.agents.policy.network import Policy
    from go_opt.agents.training.problems.environment import CheckedSession, Environment
    from go_opt.agents.training.problems.rollout import Lesson
    from go_opt.agents.training.requests import FinetuneRequest
    from go_opt.agents.training.run import Progress, Trained

SplitOrNone = Split | Literal["none"]
PLAN_NAME: Final = "plan.json"
SEARCHED_NAME: Final = "searched.json"  # the search's plan, so that a resumed run has the same one
SEARCH_S: Final = 2.0  # budget of the search that finetuning is compared with
MOST_VALIDATION_OPS: Final = 1200  # validation takes as long as several steps


@dataclass(frozen=True, eq=False)
class TrainingResult:
    """The state and files of a run."""

    folder: Path
    policy: Policy  # the best on validation, or the last without validation
    policy_file: Path
    step: int
    steps: int  # of the whole run
    samples: int  # evaluations so far, without validation
    best_score: float | None  # on validation: mean log speed-up over greedy
    # Finetuning only:
    plan: Plan | None = None  # the best plan of training or search, verified
    plan_file: Path | None = None
    best_interval_s: float | None = None  # of the plan, by the environment
    reference_interval_s: float | None = None  # of the greedy plan, by the environment; None if invalid
    searched_interval_s: float | None = None  # the same for the plan of a search without a policy

    @property
    def is_complete(self) -> bool:
        """False if the run was stopped before its last step."""
        return self.step == self.steps


def pretrain(
    folder: str | Path,
    *,
    graphs: Sequence[Graph | nx.DiGraph | str | Path] = (),
    split: SplitOrNone | None = None,
    validation: Sequence[Graph | nx.DiGraph | str | Path] | None = None,
    target: Target | str | Path = "mcm-6x6",
    samples: int = 60_000,
    seed: int = 0,
    environment: Fidelity | str | Environment = "analytical",
    lessons: Sequence[str] = (),
    workers: int = 1,
    generated_share: float = 0.4,
    most_ops: int = 512,
    graphs_per_step: int = 4,
    network: PolicyConfig | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> TrainingResult:
    """Train one policy for many graphs, and for packages like ``target``.

    Writes ``policy.safetensors``, the checkpoint and the metrics to ``folder``. Resumes a run that
    ``folder`` holds; a resumed run ends as it would have without the stop.

    Args:
      graphs: training graphs, in addition to the split's and the generated ones.
      split: a split of the zoo; its graphs with at most ``most_ops`` ops are training graphs too.
        Default: ``train`` without ``graphs``, else ``none``.
      validation: graphs that select the policy to keep; by default the zoo's validation split.
      samples: evaluations, without validation; rounded up to whole steps.
      environment: evaluates plans: ``analytical``, ``simulated``, the ``HOST:PORT`` of an
        environment service, or your own object.
      lessons: what to learn: ``placement`` (by the walk), ``order`` (and kernels, for the exact
        slicer), ``joint`` (all at once). Default: placement.
      workers: threads that decode and evaluate the graphs of a step.
      generated_share: share of generated graphs in a step, 0 to 1.
      graphs_per_step: a multiple of the number of devices.
      on_progress: called after every step.
      should_stop: called before every step; a stopped run keeps its progress.

    Raises:
      InvalidInputError: an argument is out of range, or the folder is another run's.
      PolicyError: the checkpoint in the folder is malformed or of another version.
      EnvironmentFailedError: the environment failed; the checkpoint of the last step is there.
      ServiceError: no environment answers at ``HOST:PORT``.
    """
    check_seed(seed)
    check_installed("pretrain", *TRAINING)
    check_folder(folder)
    answers = as_environment(environment, workers)
    on = as_target(target)
    chosen = [as_loaded(graph) for graph in graphs]
    chosen += zoo_graphs(split or ("none" if chosen else "train"), on, most_ops)
    held_out = zoo_graphs("validation", on, MOST_VALIDATION_OPS) if validation is None else validation

    from go_opt.agents.networks import PolicyConfig
    from go_opt.agents.policy.network import enable_compilation_cache
    from go_opt.agents.training.problems.rollout import Settings
    from go_opt.agents.training.requests import PretrainRequest
    from go_opt.agents.training.requests import pretrain as run

    enable_compilation_cache()
    request = PretrainRequest(
        graphs=chosen,
        validation=[as_loaded(graph) for graph in held_out],
        target=on,
        samples=samples,
        seed=seed,
        settings=Settings(lessons=as_lessons(lessons), graphs_per_step=graphs_per_step),
        config=network or PolicyConfig(),
        generated_share=generated_share,
        most_ops=most_ops,
    )
    stops = of_any_host(should_stop)
    trained = run(request, folder, answers, workers=workers, on_progress=on_progress, should_stop=stops)
    return _result(folder, trained)


def finetune(
    graph: Graph | nx.DiGraph | str | Path,
    folder: str | Path,
    *,
    target: Target | str | Path = "mcm-6x6",
    policy: Policy | str | Path | None = "default",
    samples: int = 200,
    seed: int = 0,
    environment: Fidelity | str | Environment = "analytical",
    lessons: Sequence[str] = (),
    workers: int = 1,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> TrainingResult:
    """Train a policy further on one graph, and keep the best plan found.

    A search of two seconds without a policy plans the graph first. The environment evaluates
    that plan, which is kept unless training finds a better one.

    Writes ``policy.safetensors``, ``plan.json``, the checkpoint and the metrics to ``folder``.
    :func:`pretrain` explains resuming, the other arguments and errors.

    Args:
      policy: the policy to start from: ``default`` is the shipped policy, a path is your own, None
        or ``"none"`` is an untrained policy.

    Raises:
      InfeasibleError: the environment accepted a plan that the verifier refuses.
      PolicyError: the policy or the checkpoint in the folder is malformed or of another version.
    """
    check_seed(seed)
    check_installed("finetune", *TRAINING)
    check_folder(folder)
    answers = as_environment(environment, workers)
    on = as_target(target)
    learnt = as_loaded(graph)

    import jax

    from go_opt.agents.policy.network import enable_compilation_cache
    from go_opt.agents.training.problems.environment import greedy_objective_s, open_session
    from go_opt.agents.training.requests import FinetuneRequest, finetuning_settings
    from go_opt.agents.training.requests import finetune as run
    from go_opt.solver.orders.instance import instance

    enable_compilation_cache()
    request = FinetuneRequest(
        learnt, on, as_policy(policy, seed), samples, seed, finetuning_settings(as_lessons(lessons))
    )
    with open_session(answers, learnt, on) as session:
        greedy_s = greedy_objective_s(session, instance(learnt, on))
        objective: Objective = getattr(answers, "objective", "throughput")
        found = _searched(session, request, Path(folder), objective, should_stop)
    searched_interval_s = found[0][0] if found else None
    stops = of_any_host(should_stop)
    trained = run(request, folder, answers, workers=workers, on_progress=on_progress, should_stop=stops)
    if trained.best_plan is not None:
        found.insert(0, (trained.best_plan.expected_s, _verified(learnt, on, trained.best_plan)))
    if not found:
        return _result(folder, trained)
    best_interval_s, plan = min(found, key=operator.itemgetter(0))
    plan_file = Path(folder) / PLAN_NAME
    if jax.process_index() == 0:
        save_plan(plan, plan_file, names_to_dict(learnt, plan))
    return _result(
        folder,
        trained,
        plan=plan,
        plan_file=plan_file,
        best_interval_s=best_interval_s,
        reference_interval_s=greedy_s if math.isfinite(greedy_s) else None,
        searched_interval_s=searched_interval_s,
    )


def _result(folder: str | Path, trained: Trained, **of_one_graph: Any) -> TrainingResult:
    from go_opt.agents.training.requests import POLICY_NAME

    return TrainingResult(
        folder=Path(folder),
        policy=trained.policy,
        policy_file=Path(folder) / POLICY_NAME,
        step=trained.step,
        steps=trained.steps,
        samples=trained.samples,
        best_score=trained.best_score,
        **of_one_graph,
    )


def _verified(graph: Graph, target: Target, best: Candidate) -> Plan:
    plan = best.plan(graph, target)
    violations = verify(graph, target, plan)
    if violations:
        raise InfeasibleError(f"the best plan met is not valid: {violations[0].message}")
    return plan


def _searched(
    session: CheckedSession,
    request: FinetuneRequest,
    folder: Path,
    objective: Objective,
    should_stop: Callable[[], bool],
) -> list[tuple[float, Plan]]:
    """The search's plan and its objective in the environment; empty if that refuses the plan."""
    graph, target, file = request.graph, request.target, folder / SEARCHED_NAME
    folder.mkdir(parents=True, exist_ok=True)
    is_whole = session.takes_plans
    if not file.exists():
        try:
            found = optimize(
                graph, target, objective=objective, budget_s=SEARCH_S, seed=request.seed, relays=is_whole,
                replication=is_whole, splits=False, rewrite=False, policy=None, should_stop=should_stop,
            )  # fmt: skip
        except InfeasibleError:
            return []
        save_plan(found.plan, file)
    plan = load_plan(file)
    made_for = (plan.graph_fingerprint, plan.target_fingerprint)
    if made_for != (graph.fingerprint, target.fingerprint):  # of another run, which training will refuse
        return []
    arrays = (plan.placement[None], plan.order[None], plan.fusion_group[None])
    answer = session.evaluate_plans([plan]) if is_whole else session.evaluate(*arrays)
    return [(float(answer.objective_s[0]), plan)] if answer.valid[0] else []


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
    from go_opt.agents.training.problems.rollout import LESSONS, Settings

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
