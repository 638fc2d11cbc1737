"""Runs a planned training step on this machine, and compares it with the step on one device."""

from __future__ import annotations

import json
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from go_opt.common.processes import num_cores
from go_opt.common.units import format_bytes
from go_opt.env import Target
from go_opt.errors import EnvironmentFailedError, InvalidInputError
from go_opt.extras import check_installed
from go_opt.parallel.configuration import pairs_text
from go_opt.parallel.execution.processes import Action, Job, difference, run_processes
from go_opt.parallel.export.exporting import JAX_FILE, checked_shardings, jax_text
from go_opt.parallel.export.shardings import Shardings
from go_opt.parallel.plans.answers import StepAnswer, loaded_step
from go_opt.parallel.schedule import simulate
from go_opt.parallel.step import Step


@dataclass(frozen=True)
class RankRun:
    """What a pipeline rank measured. Bytes of states are in the types that the plan has."""

    rank: int
    layers: int
    in_flight: float  # most micro-batches between their passes
    planned_in_flight: float
    state_bytes: int  # weights, gradients and moments of a device
    planned_state_bytes: int
    kept_bytes: int  # most activations of a device, in float64


@dataclass(frozen=True)
class StepRun:
    """A planned step that ran. Differences are the largest ones, of the largest element of each array."""

    model: str
    target: str
    parallel: str
    devices: int
    processes: int
    cores: int
    losses: tuple[float, ...]
    whole_losses: tuple[float, ...]  # of the step on one device
    loss_difference: float
    gradient_difference: float
    weight_difference: float  # behind the last step
    different: str  # the array that differs most
    tolerance: float
    ranks: tuple[RankRun, ...]
    notes: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        worst = max(self.loss_difference, self.gradient_difference, self.weight_difference)
        return worst <= self.tolerance

    def lines(self) -> Iterator[str]:
        """As text."""
        ranks, processes = len(self.ranks), self.processes
        yield (
            f"{self.model}, planned for {self.target}: {ranks} pipeline rank{'s' * (ranks > 1)} of "
            f"{self.devices // ranks} in {processes} process{'es' * (processes > 1)} on {self.cores} cores, "
            f"{len(self.losses)} steps"
        )
        yield f"losses      {', '.join(f'{loss:.6f}' for loss in self.losses)}"
        are = "equal" if self.is_equal else f"DIFFERENT, most {self.different}"
        yield (
            f"compared    {are}: with the step on one device, losses up to {self.loss_difference:.1e}, "
            f"gradients up to {self.gradient_difference:.1e}, weights up to {self.weight_difference:.1e} of "
            "their scale"
        )
        for one in self.ranks:
            yield (
                f"rank {one.rank:<6} {one.layers} layers, {one.in_flight:g} micro-batches in flight, planned "
                f"{one.planned_in_flight:g}; weights, gradients and moments {format_bytes(one.state_bytes)} "
                f"a device, predicted {format_bytes(one.planned_state_bytes)}"
            )
        yield from (f"note        {note}" for note in self.notes)

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return asdict(self) | {"is_equal": self.is_equal}


_FLOP_MARGIN: Final = 1.25  # XLA and the graph count element-wise ops differently


@dataclass(frozen=True)
class FunctionRun:
    """A step given as a JAX function that ran with a plan's shardings. Differences as in :class:`StepRun`."""

    model: str
    target: str
    devices: int
    results: tuple[tuple[float, ...], ...]  # by step: the mean of each result that is no state, the loss
    whole_results: tuple[tuple[float, ...], ...]  # of the step on one device
    difference: float  # of all results of all steps, weights and moments among them
    different: str  # the result that differs most
    tolerance: float
    # FLOPs of a device, of those of the step on one device, as XLA counts them, if all update all weights.
    flop_share: float
    planned_flop_share: float
    state_elements: int  # of a device, as a mean: a plan may put copies of replicas on other chips
    planned_state_elements: int

    @property
    def problem(self) -> str:
        """How the run is not what was planned; empty if it is."""
        if not self.difference <= self.tolerance:
            return (
                f"{self.different} differs from that of the step on one device by {self.difference:.1e} of "
                f"its scale, more than {self.tolerance:.1e}"
            )
        if self.state_elements != self.planned_state_elements:
            return (
                f"a device keeps {self.state_elements:,} elements of states, "
                f"and {self.planned_state_elements:,} by the plan"
            )
        if self.flop_share > self.planned_flop_share * _FLOP_MARGIN:
            return (
                f"with its part of the batch a device computes {self.flop_share:.3f} of the step's FLOPs, "
                f"and {self.planned_flop_share:.3f} by the plan"
            )
        return ""

    def lines(self) -> Iterator[str]:
        """As text."""
        yield f"{self.model}, planned for {self.target}: {self.devices} devices, {len(self.results)} steps"
        yield f"results     {'; '.join(', '.join(f'{one:.6f}' for one in of) for of in self.results)}"
        are = self.problem or f"equal to those of the step on one device, up to {self.difference:.1e}"
        yield f"compared    {are}"
        yield (
            f"a device    {self.flop_share:.3f} of the FLOPs without shared updates, "
            f"predicted {self.planned_flop_share:.3f}; "
            f"{self.state_elements:,} elements of states, predicted {self.planned_state_elements:,}"
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return asdict(self) | {"is_equal": not self.problem}


class StepDiffersError(EnvironmentFailedError):
    """A planned step ran, and does not give what the step on one device gives."""

    exit_code = 6

    def __init__(self, message: str, result: Any) -> None:
        super().__init__(message)
        self.result = result  # a StepRun, or a FunctionRun


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
