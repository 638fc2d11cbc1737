"""Runs a planned training step on this machine, and compares it with the step on one device."""

from __future__ import annotations

import json
import socket
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from go_opt.common.processes import num_cores
from go_opt.env import Target
from go_opt.errors import InvalidInputError
from go_opt.extras import check_installed
from go_opt.parallel.execution.processes import Action, Job, run_processes
from go_opt.parallel.execution.results import RankRun, StepDiffersError, StepRun, difference
from go_opt.parallel.export.exporting import checked_shardings
from go_opt.parallel.export.jax_file import JAX_FILE, jax_text
from go_opt.parallel.export.shardings import Shardings
from go_opt.parallel.plans import StepAnswer, loaded_step
from go_opt.parallel.schedule import simulate
from go_opt.parallel.step import Step
from go_opt.parallel.transformer import pairs_text

MOST_DEVICES: Final = 8
MOST_PARAMETERS: Final = 10_000_000
MOST_LOGITS: Final = 50_000_000  # of the whole batch
STEPS: Final = 3
TOLERANCE: Final = 1e-5  # of the largest element of an array


def run_step(
    model: str,
    plan: Path,
    *,
    seed: int = 0,
    target: Target | None = None,
    tolerance: float | None = None,
) -> StepRun:
    """Run three steps of a plan of a training step, with a process for each pipeline rank.

    A process has a host device for each device of its rank, and runs the passes and messages of its schedule
    on the shardings that ``export --format jax`` writes; all in float64. Another process runs the same steps
    on one device, without a split.

    Args:
      model: as ``gpt:hidden=64,layers=4,heads=4,sequence=32,vocabulary=256``.
      plan: a file of ``optimize --objective step --out``.
      seed: draws the first weights, and the tokens of each step.
      target: None: the plan's own.
      tolerance: largest difference, relative to the largest element of each array. None: 1e-5.

    Raises:
      InvalidInputError: JAX is not installed, or the model is too large.
      PlanError: the plan is malformed, of another model, or breaks a rule.
      EnvironmentFailedError: a process ended early.
      StepDiffersError: a loss, gradient or weight differs; the error has the result.
    """
    check_installed("run of a training step", "jax")
    allowed = TOLERANCE if tolerance is None else tolerance
    if not 0 <= allowed < np.inf:
        raise InvalidInputError(f"tolerance must be 0 or more, not {tolerance}.", field="tolerance")
    answer = loaded_step(plan, target, model)
    shardings = checked_shardings(answer)
    _check_size(answer)
    with tempfile.TemporaryDirectory(prefix="go-opt-run-") as folder:
        return _run(answer, shardings, Path(folder), seed, allowed)


def _check_size(answer: StepAnswer) -> None:
    """Reject what this machine is not meant to run."""
    case, model = answer.step.case, answer.step.case.model
    for name, value, limit in (
        ("devices", answer.step.chosen.devices, MOST_DEVICES),
        ("parameters", model.parameters, MOST_PARAMETERS),
        ("logits", case.batch * model.sequence * model.vocabulary, MOST_LOGITS),
    ):
        if value > limit:
            raise InvalidInputError(
                f"a run of a training step has at most {limit:,} {name}, not {value:,}.", field="model"
            )


def _run(answer: StepAnswer, shardings: Shardings, folder: Path, seed: int, tolerance: float) -> StepRun:
    step, chosen = answer.step, answer.step.chosen
    (folder / JAX_FILE).write_text(jax_text(shardings, answer.model), "utf-8")
    address = f"127.0.0.1:{_free_port()}" if chosen.pipeline > 1 else ""
    shared = answer.model, pairs_text(vars(chosen)), STEPS, seed, str(folder / JAX_FILE)
    jobs = {"the unsplit step": Job(*shared, str(folder / "unsplit.npz"))}
    for rank, actions in enumerate(rank_actions(step)):
        jobs[f"rank {rank}"] = Job(*shared, str(folder / f"rank-{rank}.npz"), rank, tuple(actions), address)
    devices = chosen.devices // chosen.pipeline
    run_processes(folder, {name: (job, 1 if job.rank < 0 else devices) for name, job in jobs.items()})
    told = {job.rank: json.loads(Path(job.out).with_suffix(".json").read_text()) for job in jobs.values()}
    losses = np.sum([one["losses"] for rank, one in told.items() if rank >= 0], axis=0)
    whole = np.array(told[-1]["losses"])
    found = {"loss": float(np.max(np.abs(losses - whole) / np.abs(whole)))}
    worst = {"loss": "the loss"}
    with np.load(folder / "unsplit.npz") as right:
        for rank in range(chosen.pipeline):
            with np.load(folder / f"rank-{rank}.npz") as arrays:
                for name in arrays:
                    kind = name.partition("/")[0].partition("-")[0]
                    gap = difference(arrays[name], right[name])
                    if not gap <= found.get(kind, -1.0):
                        found[kind], worst[kind] = gap, f"{name} of rank {rank}"
    most = max(found, key=lambda kind: found[kind])
    result = StepRun(
        answer.model,
        step.case.machine.target.name,
        pairs_text(vars(chosen)),
        chosen.devices,
        len(jobs) - 1,
        num_cores(),
        tuple(losses.tolist()),
        tuple(whole.tolist()),
        found["loss"],
        found["gradient"],
        found["weight"],
        worst[most],
        tolerance,
        tuple(_rank_run(answer, rank, told[rank]) for rank in range(chosen.pipeline)),
        tuple(shardings.notes),
    )
    if not result.is_equal:
        raise StepDiffersError(
            f"{worst[most]} differs from that of the step on one device by {found[most]:.1e} of its scale, "
            f"more than {tolerance:.1e}.",
            result,
        )
    return result


def _rank_run(answer: StepAnswer, rank: int, told: dict[str, Any]) -> RankRun:
    step, case = answer.step, answer.step.case
    size, layers, is_end = (
        case.machine.element_bytes,
        sum(step.layers[rank]),
        rank in (0, step.chosen.pipeline - 1),
    )
    held = size * (told["weight_elements"] + told["gradient_elements"]) + 12 * told["moment_elements"]
    return RankRun(
        rank,
        layers,
        told["in_flight"],
        step.chosen.in_flight(rank, case.batch),
        held,
        int(case.state_bytes(step.chosen, layers, is_end=is_end)),
        told["kept_bytes"],
    )


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


# A message is one call on both its ranks, which wait for each other. All ranks make their calls in the order
# of one timeline, the simulated one, so that none waits for a call that comes later.


def rank_actions(step: Step) -> list[list[Action]]:
    """[P] what each rank does in a step."""
    timeline = simulate(step)
    ranks, order = step.chosen.pipeline, timeline.order
    stages = ranks * step.chosen.stages_per_device
    found: list[tuple[float, int, int, Action]] = []  # when, messages before passes, the rank
    for rank in range(ranks):
        for i, chunk in enumerate(order.chunk[rank].tolist()):
            stage, number = chunk * ranks + rank, int(order.micro_batch[rank, i])
            is_backward = bool(order.is_backward[rank, i])
            kind = "backward" if is_backward else "forward"
            start_s, end_s = float(timeline.start_s[rank, i]), float(timeline.end_s[rank, i])
            found.append((start_s, 1, rank, Action(kind, stage, number, is_backward, -1)))
            reader = stage + (-1 if is_backward else 1)
            if 0 <= reader < stages:
                peer = reader % ranks
                found.append((end_s, 0, rank, Action("send", stage, number, is_backward, peer)))
                found.append((end_s, 0, peer, Action("receive", stage, number, is_backward, rank)))
    found.sort(key=lambda row: (row[0], row[1], row[3].stage, row[3].micro_batch, row[3].is_backward))
    return [[action for _, _, owner, action in found if owner == rank] for rank in range(ranks)]
