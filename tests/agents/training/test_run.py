"""Runs: what they leave behind, stopped, resumed, refused, and with an environment that fails."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from go_opt.agents.generator import generate_graph
from go_opt.agents.policy.network import Policy, parameters_digest, trainable
from go_opt.agents.policy.policy_file import TensorFormat, load_policy, save_tensors
from go_opt.agents.training import run as loop
from go_opt.agents.training.checkpoint import FILE_NAME, FORMAT, from_arrays, load_checkpoint
from go_opt.agents.training.problems.environment import LocalEnvironment, open_session
from go_opt.agents.training.requests import finetune, pretrain
from go_opt.agents.training.run import Progress
from go_opt.agents.training.updates.learner import Step
from go_opt.env import Target, evaluate_plan
from go_opt.errors import EnvironmentFailedError, InvalidInputError, PolicyError
from go_opt.hardware import HardwareEnvironment
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.solver.verify.verifier import verify
from tests.agents.training.runs import (
    LESSONS,
    SETTINGS,
    STEPS,
    Fault,
    Flaky,
    ended_alike,
    finetuning,
    metrics,
    pretraining,
)


@pytest.fixture(scope="module")
def finetuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finetuning that went through."""
    folder = tmp_path_factory.mktemp("finetuned")
    assert finetune(finetuning(), folder, Flaky()).is_complete
    return folder


def after(steps: int) -> Any:
    """Asks to stop after so many steps."""
    asked = count()
    return lambda: next(asked) >= steps


def test_what_pretraining_leaves(undisturbed: Path) -> None:
    lines = metrics(undisturbed)
    assert [line["step"] for line in lines] == list(range(STEPS))
    assert lines[-1]["samples"] == STEPS * 16
    validated = {line["step"]: line["validation"] for line in lines if "validation" in line}
    assert list(validated) == [2, 5, STEPS - 1]
    for lesson in LESSONS:
        assert np.isfinite([line[f"reward/{lesson.name}"] for line in lines]).all()
        assert f"validation/{lesson.name}" in lines[-1]
    card = load_policy(undisturbed / "policy.safetensors").card
    assert card["validation_best"] == max(validated.values())
    assert card["validation_curve"] == [[step, round(score, 4)] for step, score in validated.items()]
    assert card["request"]["environment"] == "Flaky"
    assert (card["steps"], card["of_steps"]) == (STEPS, STEPS)
    assert list((undisturbed / "tensorboard").iterdir())


def test_the_policy_kept_is_the_best_on_validation(undisturbed: Path) -> None:
    checkpoint = load_checkpoint(undisturbed)
    assert checkpoint is not None
    policy = trainable(load_policy(undisturbed / "policy.safetensors"))
    kept = from_arrays("best", checkpoint.arrays, like=policy.parameters)
    best = Policy(policy.config, kept, checkpoint.arrays["best walk"])
    assert parameters_digest(best) == parameters_digest(policy)


def test_the_best_plan_of_finetuning(finetuned: Path) -> None:
    # Nothing is left to do, so this only reads what the run found.
    request, steps = finetuning(), list[Step]()
    trained = finetune(request, finetuned, Flaky(), on_step=steps.append)
    assert (steps, trained.is_complete, trained.samples) == ([], True, 64)
    best = trained.best_plan
    assert best is not None
    assert best.expected_s == metrics(finetuned)[-1]["best_interval_s"]
    plan = best.plan(request.graph, request.target)
    assert verify(request.graph, request.target, plan) == []
    with open_session(LocalEnvironment(), request.graph, request.target) as session:
        answer = session.evaluate(best.placement[None], best.order[None], best.fusion_group[None])
    assert answer.objective_s[0] == best.expected_s


def test_progress(tmp_path: Path) -> None:
    seen: list[Progress] = []
    finetune(finetuning(), tmp_path, LocalEnvironment(), on_progress=seen.append)
    assert [(each.step, each.steps, each.samples) for each in seen] == [(i, 4, 16 * i) for i in (1, 2, 3, 4)]
    assert all(each.samples_per_s > 0 for each in seen)
    assert [each.left_s > 0 for each in seen] == [True, True, True, False]
    bests = [each.best_interval_s for each in seen]
    assert bests == sorted(bests, reverse=True)


@pytest.mark.parametrize("workers", [1, 3])
def test_stopped_and_gone_on_with(undisturbed: Path, tmp_path: Path, workers: int) -> None:
    for steps in (1, 0, 2, 1):
        stopped = pretrain(pretraining(), tmp_path, Flaky(), workers=workers, should_stop=after(steps))
        assert not stopped.is_complete
        assert load_policy(tmp_path / "policy.safetensors").card["steps"] == stopped.step
    assert stopped.step == 4
    assert pretrain(pretraining(), tmp_path, Flaky(), workers=workers).is_complete
    assert ended_alike(tmp_path, undisturbed)


def test_finetuning_stopped_and_gone_on_with(finetuned: Path, tmp_path: Path) -> None:
    stopped = finetune(finetuning(), tmp_path, Flaky(), should_stop=after(2))
    assert (stopped.step, stopped.steps) == (2, 4)
    trained = finetune(finetuning(), tmp_path, Flaky())
    assert ended_alike(tmp_path, finetuned)
    assert trained.best_plan is not None
    assert trained.best_plan.expected_s == metrics(finetuned)[-1]["best_interval_s"]


def test_killed_after_the_last_checkpoint(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was logged after it is played once more, and logged once."""

    def die(progress: Progress) -> None:
        if progress.step == 4:
            monkeypatch.setattr(loop, "CHECKPOINT_EVERY_S", 1e9)
        if progress.step == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(loop, "CHECKPOINT_EVERY_S", 0.0)
    with pytest.raises(KeyboardInterrupt):
        pretrain(pretraining(), tmp_path, Flaky(), on_progress=die)
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint is not None
    assert (checkpoint.progress["step"], len(metrics(tmp_path))) == (3, 6)
    torn = tmp_path / ".policy.safetensors.0123456789ab.tmp"  # of a process that was killed in the writing
    torn.touch()
    pretrain(pretraining(), tmp_path, Flaky())
    assert not torn.exists()
    assert ended_alike(tmp_path, undisturbed)


# A step asks 4 batches of 2 sessions, which the next one closes; every third adds 6 of one session.
FAULTS: list[tuple[Fault, int, int]] = [
    ("raises", 1, 0),
    ("raises", 25, 4),
    ("answers NaN", 26, 4),
    ("raises", 32, 5),  # in a validation, after the updates of its step
    ("opens not", 12, 5),
    ("closes not", 7, 3),
]


@pytest.mark.parametrize(("fault", "fails_at", "step"), FAULTS)
def test_an_environment_that_fails(
    undisturbed: Path, tmp_path: Path, fault: Fault, fails_at: int, step: int
) -> None:
    with pytest.raises(EnvironmentFailedError) as failure:
        pretrain(pretraining(), tmp_path, Flaky(fails_at, fault))
    sentence = str(failure.value)
    assert sentence.startswith("Flaky for '")
    assert sentence.endswith(f"holds step {step} of {STEPS} to go on from.")
    assert ("the board is on fire" in sentence) == (fault != "answers NaN")
    assert "\n" not in sentence
    assert pretrain(pretraining(), tmp_path, Flaky()).is_complete
    assert ended_alike(tmp_path, undisturbed)


def test_no_step_but_the_last_is_lost_where_closing_fails_at_the_end(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailedError, match="failed to close"):
        finetune(finetuning(), tmp_path, Flaky(1, "closes not"))
    assert finetune(finetuning(), tmp_path, Flaky()).is_complete


def test_the_first_failure_is_the_one_told(tmp_path: Path) -> None:
    class Dying(Flaky):
        def trip(self, fault: Fault) -> None:
            if fault in ("raises", "closes not"):
                raise RuntimeError(fault)

    with pytest.raises(EnvironmentFailedError, match="failed at batch 1: RuntimeError: raises; training"):
        finetune(finetuning(), tmp_path, Dying())


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"seed": 1}, "seed is 0, not 1"),
        ({"steps": 9}, f"samples is {16 * STEPS}, not {16 * 9}"),
        ({"settings": replace(SETTINGS, learning_rate=0.5)}, "settings is"),
        ({"most_ops": 80}, "most_ops is 90, not 80"),
        ({"validate_every": 2}, "validate_every is 3, not 2"),
    ],
)
def test_a_folder_of_another_run(undisturbed: Path, changes: dict[str, Any], word: str) -> None:
    before = {path: path.read_bytes() for path in undisturbed.iterdir() if path.is_file()}
    with pytest.raises(InvalidInputError, match="holds another run") as refusal:
        pretrain(pretraining(**changes), undisturbed, Flaky())
    assert word in str(refusal.value)
    assert {path: path.read_bytes() for path in undisturbed.iterdir() if path.is_file()} == before


def test_a_folder_of_a_run_in_another_environment(finetuned: Path) -> None:
    with pytest.raises(InvalidInputError, match="its environment is 'Flaky', not 'analytical'"):
        finetune(finetuning(), finetuned, LocalEnvironment())


def test_a_checkpoint_that_is_none(tmp_path: Path) -> None:
    finetune(finetuning(), tmp_path, LocalEnvironment(), should_stop=after(1))
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(PolicyError, match="is truncated"):
        finetune(finetuning(), tmp_path, LocalEnvironment())
    save_tensors(path, TensorFormat(FORMAT.name, FORMAT.version + 1), {}, {})
    with pytest.raises(PolicyError, match="is of version"):
        finetune(finetuning(), tmp_path, LocalEnvironment())


def test_seeds_differ(tmp_path: Path) -> None:
    policies = {
        parameters_digest(finetune(finetuning(1, seed=seed), tmp_path / str(seed), LocalEnvironment()).policy)
        for seed in (0, 1)
    }
    assert len(policies) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": 0}, "samples is 0, must be 1 or more"),
        ({"generated_share": 1.5}, "generated_share is 1.5, must be 0 to 1"),
        ({"plain_share": float("nan")}, "plain_share is nan, must be 0 to 1"),
        ({"most_ops": 49}, "most_ops is 49, must be 50 or more"),
        ({"validate_every": 0}, "validate_every is 0, must be 1 or more"),
    ],
)
def test_pretraining_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        pretraining(**changes)


def test_graphs_that_would_never_be_drawn_are_refused() -> None:
    builder = GraphBuilder("tiny")
    builder.add_tensor("x", 8, "float32", "input")
    builder.add_op(
        "a", "Relu", "vector", flops=1.0, dtype="float32", reads=[("x", None)], writes=[("y", 8, "float32")]
    )
    with pytest.raises(InvalidInputError, match="graph 'tiny' has 1 ops, pretraining takes 50 to 90"):
        pretraining(graphs=[builder.build()])


def test_finetuning_refused() -> None:
    with pytest.raises(InvalidInputError, match="samples is 0"):
        finetuning(samples=0)


@dataclass(frozen=True)
class Board:
    """Hardware that the model describes."""

    def evaluate(self, graph: Graph, target: Target, plan: Plan) -> float:
        return evaluate_plan(graph, target, plan).interval_s


def test_what_is_learned_on_hardware_is_kept_for_other_graphs(tmp_path: Path) -> None:
    first = finetuning()
    learned = finetune(first, tmp_path / "first", HardwareEnvironment(Board())).policy
    kept = load_policy(tmp_path / "first" / "policy.safetensors")
    assert (kept.walk_weights == learned.walk_weights.astype(np.float32)).all()
    assert (kept.walk_weights != first.policy.walk_weights).any()
    other = finetuning(graph=generate_graph(3, num_ops=80), policy=trainable(kept), samples=1)
    assert (other.policy.walk_weights == kept.walk_weights).all()
    assert finetune(other, tmp_path / "other", HardwareEnvironment(Board())).is_complete
