"""Training steps that run on host devices and processes, against the step on one device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from go_opt.env import load_target
from go_opt.errors import EnvironmentFailedError, InvalidInputError, PlanError
from go_opt.parallel import Case, cost_step
from go_opt.parallel.execution import running
from go_opt.parallel.execution.processes import Action
from go_opt.parallel.execution.running import MOST_DEVICES, StepDiffersError, StepRun, rank_actions, run_step
from go_opt.parallel.plans.answers import StepAnswer
from go_opt.parallel.step import Layers

TINY = "gpt:hidden=16,heads=4,sequence=8"


def saved(path: Path, model: str, parallel: str, batch: int, layers: tuple[Layers, ...] = ()) -> Path:
    """A plan file of a model in a configuration, with other layers of ranks if they are given."""
    degrees = [pair.split("=") for pair in parallel.split(",") if pair]
    devices = 1
    for name, value in degrees:
        devices *= int(value) if name in ("tensor", "pipeline", "data", "expert") else 1
    step = cost_step(Case.read(model, load_target(f"dgx-a100-{devices}"), batch), parallel)
    StepAnswer(replace(step, layers=layers or step.layers), model).save(path)
    return path


def run(path: Path, model: str, parallel: str, batch: int = 8, layers: tuple[Layers, ...] = ()) -> StepRun:
    return run_step(model, saved(path / "plan.json", model, parallel, batch, layers))


@pytest.mark.parametrize(
    ("model", "parallel", "batch", "layers"),
    [
        pytest.param(
            f"{TINY},layers=2,vocabulary=33,kv_heads=2,gated=on",
            "tensor=4,data=2,zero=1,sequence_parallel=on,recompute=attention",
            8,
            (),
            id="tensor ranks that share keys, sequence parallelism, ZeRO 1, a vocabulary that is filled up",
        ),
        pytest.param(
            f"{TINY},layers=2,vocabulary=32,experts=4,experts_per_token=2,gated=on",
            "data=2,expert=2,zero=3,micro_batch=2,recompute=none",
            8,
            (),
            id="experts, ZeRO 3",
        ),
        pytest.param(
            f"{TINY},layers=3,vocabulary=32",
            "pipeline=2,data=2,zero=2",
            8,
            ((1, 0, 0), (0, 1, 1)),
            id="uneven stages, recomputation by layer, ZeRO 2",
        ),
        pytest.param(
            f"{TINY},layers=4,vocabulary=32,kv_heads=1",
            "pipeline=2,tensor=2,schedule=interleaved,stages_per_device=2",
            4,
            (),
            id="interleaved, tensor ranks",
        ),
        pytest.param(
            f"{TINY},layers=5,vocabulary=32,experts=2",
            "pipeline=4,expert=2,schedule=gpipe,recompute=none",
            8,
            (),
            id="four ranks, GPipe, experts",
        ),
    ],
)
def test_a_split_step_is_the_step_on_one_device(
    tmp_path: Path, model: str, parallel: str, batch: int, layers: tuple[Layers, ...]
) -> None:
    result = run(tmp_path, model, parallel, batch, layers)
    # In float64, rounding is all that differs.
    assert max(result.loss_difference, result.gradient_difference) < 1e-12
    assert result.weight_difference < 1e-9  # Adam divides small gradients by their size
    assert result.losses[0] != result.losses[1] != result.losses[2]
    for rank in result.ranks:
        assert rank.in_flight == rank.planned_in_flight
        # Norms, routers and the rows that fill the table up are all that is not predicted.
        assert rank.planned_state_bytes <= rank.state_bytes < 1.2 * rank.planned_state_bytes


def test_a_schedule_that_sums_one_gradient_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = [("forward", 0), ("backward", 0), ("forward", 1)]
    actions = [Action(name, 0, number, name == "backward", -1) for name, number in passes]
    monkeypatch.setattr(running, "rank_actions", lambda step: [actions])
    with pytest.raises(StepDiffersError, match="differs from that of the step on one device") as raised:
        run(tmp_path, f"{TINY},layers=1,vocabulary=8", "", batch=2)
    assert raised.value.exit_code == 6
    result = raised.value.result
    assert not result.is_equal
    assert result.gradient_difference > 0.1
    assert result.losses[0] == pytest.approx(result.whole_losses[0], rel=1e-12)
    assert result.loss_difference > 1e-5  # of the steps behind the first


def test_a_process_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rank waits for it; the run ends all the same."""

    def wrong(step: object) -> list[list[Action]]:
        actions = rank_actions(step)  # type: ignore[arg-type]
        return [[Action("backward", 0, 7, True, -1)], actions[1]]

    monkeypatch.setattr(running, "rank_actions", wrong)
    with pytest.raises(EnvironmentFailedError, match="the process of rank 0 failed: KeyError"):
        run(tmp_path, f"{TINY},layers=2,vocabulary=8", "pipeline=2", batch=2)


def test_what_is_refused(tmp_path: Path) -> None:
    def refused(words: str, model: str, parallel: str, batch: int = 16, **options: float) -> None:
        path = saved(tmp_path / "plan.json", model, parallel, batch)
        with pytest.raises(InvalidInputError, match=words):
            run_step(model, path, **options)  # type: ignore[arg-type]

    tiny = f"{TINY},layers=2,vocabulary=8"
    refused(f"at most {MOST_DEVICES} devices, not 16", tiny, "data=16")
    refused("parameters", f"{TINY},layers=2,vocabulary=1000000", "")
    refused("logits", f"{TINY},layers=2,vocabulary=500000", "")
    refused("tolerance must be 0 or more", tiny, "", tolerance=-1.0)
    path = saved(tmp_path / "plan.json", tiny, "pipeline=2", 8, ((0, 0, 2), (0, 0, 1)))
    with pytest.raises(PlanError, match="ranks have 3 layers of 2"):
        run_step(tiny, path)
