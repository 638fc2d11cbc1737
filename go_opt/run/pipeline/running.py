"""Runs a plan: exports it, starts a process for each chip, feeds inputs and checks outputs."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from go_opt.api.inputs import as_target
from go_opt.common.arrays import FloatArray
from go_opt.common.processes import num_cores
from go_opt.env import Target
from go_opt.errors import EnvironmentFailedError, InvalidInputError, ModelError
from go_opt.extras import check_installed
from go_opt.model.codecs.plan_json import load_plan
from go_opt.model.plan import Plan
from go_opt.run.export.exporting import export, whole_model
from go_opt.run.manifest import Manifest, check_states
from go_opt.run.pipeline.check import (
    Arrays,
    Reference,
    first_difference,
    load_inputs,
    next_states,
    random_inputs,
    whole_outputs,
)
from go_opt.run.pipeline.layout import NOT_LOADED, Layout, State, write_links
from go_opt.run.pipeline.results import (
    ChipMemory,
    OutputsDifferError,
    RunResult,
    StageRun,
    chip_seconds,
    path_seconds,
)
from go_opt.run.pipeline.sessions import Session, first_values, session
from go_opt.run.pipeline.workers import Workers, started

MAX_INFERENCES: Final = 1_000_000
ALONE: Final = 5  # inferences that run alone before the others; the first warms up caches
_DIFFERENT: Final = 4  # number of rows of random inputs
_MOST_UNCHECKED: Final = 16  # inferences whose outputs are kept until there is time to check them


def run_plan(
    model: str | Path,
    plan: Plan | str | Path,
    *,
    inferences: int = 100,
    seed: int = 0,
    links: bool = False,
    inputs: str | Path | None = None,
    target: Target | str | Path | None = None,
    costs: str | Path | None = None,
    tolerance: float | None = None,
    sequences: int | None = None,
) -> RunResult:
    """Run ``plan`` in ONNX Runtime, with one single-threaded process per chip, and measure it.

    Outputs are compared with those of the whole model for every inference. States stay in the processes;
    each begins as zeros, or as the value that the model has for it. A sequence's next inference begins when
    its last has ended. See :mod:`go_opt.run.pipeline.sessions` for states that grow.

    Args:
      model: the ONNX file that the plan is of, with all its weights; or several, ``union:2*a.onnx+1*b.onnx``.
      plan: a plan, or the path of a plan file.
      inferences: number of pipelined inferences; five more run alone before them.
      seed: seed of the random inputs, if none are given.
      inputs: a ``.npz`` file with an array for each input of the model, used for every inference.
      links: whether to delay tensors by the target's link rates.
      target: None: the plan's own.
      costs: CSV file of the measured seconds that the plan was made with.
      tolerance: largest difference of an output, relative to its largest value. None: three times the
        difference that ONNX Runtime's optimisation makes to the whole model, and 1e-5 at least.
      sequences: in flight, of a model with states. None: the plan's own.

    Raises:
      InvalidInputError: an argument is wrong, or an extra is not installed.
      ModelError, PlanError: the plan cannot be exported, or a tensor cannot go between processes.
      EnvironmentFailedError: a process ended, or memory is short.
      OutputsDifferError: an output differs; the error has the result.
    """
    check_installed("run", "onnxruntime")
    if not 2 <= inferences <= MAX_INFERENCES:
        raise InvalidInputError(
            f"inferences must be between 2 and {MAX_INFERENCES}, not {inferences}.", field="inferences"
        )
    if tolerance is not None and not 0 <= tolerance < math.inf:
        raise InvalidInputError(f"tolerance must be 0 or more, not {tolerance}.", field="tolerance")
    decided = plan if isinstance(plan, Plan) else load_plan(plan)
    if sequences is not None:
        if not 1 <= sequences <= inferences:
            raise InvalidInputError(
                f"sequences must be between 1 and the {inferences} inferences, not {sequences}.",
                field="sequences",
            )
        decided = replace(decided, sequences=sequences)
    on = as_target(target or decided.target)
    with tempfile.TemporaryDirectory(prefix="go-opt-run-") as parent, whole_model(model) as whole:
        folder = Path(parent) / "stages"
        manifest = export(whole, decided, folder, target=on, costs=costs)
        _check_sequences(manifest, sequences)
        if inputs is None:
            rng = np.random.default_rng(seed)
            rows = [random_inputs(whole.path, manifest, rng) for _ in range(_DIFFERENT)]
        else:
            rows = [load_inputs(Path(inputs), manifest)]
        return run_stages(
            whole.path, folder, manifest, inferences, rows, on if links else None, tolerance=tolerance
        )


def _check_sequences(manifest: Manifest, given: int | None) -> None:
    """Reject a number of sequences that the model does not allow."""
    problem = ""
    if given is not None and not manifest.looped:
        problem = "the model has no states, so there are no sequences"
    elif given is not None and given != manifest.sequences:
        problem = "there is one sequence, since a state is of the model"
    if problem:
        raise InvalidInputError(f"{problem}.", field="sequences")


def run_stages(
    model: Path,
    folder: Path,
    manifest: Manifest,
    inferences: int,
    inputs: Sequence[Arrays],
    links: Target | None = None,
    *,
    tolerance: float | None = None,
) -> RunResult:
    """Run the stages of an export; arguments and errors as for :func:`run_plan`.

    Args:
      inputs: rows of arrays by name, which inferences use in turn.
    """
    if not manifest.outputs:
        raise ModelError("the model has no outputs beside its states, by which a run could be checked.")
    check_states(manifest)
    layout = Layout(manifest, inferences + ALONE)
    assert layout.rings  # rejects types that cannot be sent, before any process starts
    expected = expected_outputs(model, manifest, inputs, layout.inferences)
    if links is not None:
        write_links(links, layout.chips, folder)
    with started(layout.chips) as workers:
        host, seconds = run_on(workers, folder, layout, inputs, expected)
    allowed = {name: expected.tolerance(name, tolerance) for name in expected.noise}
    result = _result(manifest, layout, host, seconds, allowed)
    over = max(host.worst, key=lambda name: host.worst[name].apart - allowed[name])
    worst = host.worst[over]
    if worst.apart > allowed[over]:
        sequence = worst.inference % layout.sequences
        steps = [inputs[i % len(inputs)] for i in range(sequence, worst.inference + 1, layout.sequences)]
        cause = first_difference(model, folder, manifest, steps, allowed[over])
        raise OutputsDifferError(
            f"output {over!r} differs from that of the whole model by {worst.apart:.2g} of its scale, "
            f"more than {allowed[over]:.2g}: {cause}.",
            result,
        )
    return result


def run_on(
    workers: Workers, folder: Path, layout: Layout, inputs: Sequence[Arrays], expected: Reference
) -> tuple[_Host, FloatArray]:
    """Run the stages of an export; also [S, I, 2] seconds of the processor and by the clock."""
    state = State(layout, workers.shared(layout.size_bytes))
    state.counters[:-2] = NOT_LOADED
    workers.give(layout.chips, folder, layout.inferences)
    joins, first = layout.manifest.host, _first_of_host(folder, layout.manifest)
    joined = session(folder / joins.file) if joins else None
    host = _Host(layout, state, workers, inputs, expected, joined, first)
    host.run()
    return host, state.seconds[:, ALONE:].copy()


def _first_of_host(folder: Path, manifest: Manifest) -> Arrays:
    """The values of the host's states before the first inference."""
    values: dict[str, NDArray] = {}
    for state in manifest.host_states:
        if state.readers:
            values |= first_values(manifest, [state], folder / manifest.stages[state.readers[0]].file)
    return values


def expected_outputs(model: Path, manifest: Manifest, inputs: Sequence[Arrays], inferences: int) -> Reference:
    """The outputs of the whole model.

    Raises:
      EnvironmentFailedError: it does not run.
    """
    try:
        written = whole_outputs(model, manifest, inputs, inferences)
        optimised = written
        with suppress(Exception):  # some versions optimise a model so that it does not run
            optimised = whole_outputs(model, manifest, inputs, inferences, is_optimized=True)
        return Reference(optimised, written)
    except Exception as error:  # ONNX Runtime has a dozen kinds
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise EnvironmentFailedError(f"the whole model does not run in ONNX Runtime: {reason}.") from error


class _Worst(NamedTuple):
    """The largest difference of an output, and the inference that has it."""

    apart: float
    inference: int


@dataclass
class _Host:
    """Feeds inputs and collects outputs, in order."""

    layout: Layout
    state: State
    workers: Workers
    inputs: Sequence[Arrays]
    expected: Reference
    joins: Session | None  # of the host's model
    first: Arrays  # values of its states
    states: dict[int, Arrays] = field(default_factory=dict)  # of each sequence
    fed_s: list[float] = field(default_factory=list)
    collected_s: list[float] = field(default_factory=list)
    outputs: Arrays = field(default_factory=dict)  # of the first inference
    unchecked: deque[tuple[int, Arrays]] = field(default_factory=deque)
    memory_bytes: list[int] = field(default_factory=list)  # of the process of each unit
    worst: dict[str, _Worst] = field(default_factory=dict)  # of each output

    def run(self) -> None:
        while (self.state.counters[:-2] == NOT_LOADED).any():
            self.workers.wait()
        ring_of = {ring.tensor: i for i, ring in enumerate(self.layout.rings)}
        given = {name: ring_of[name] for name in (*self.inputs[0], *self.first)}
        outputs = {tensor: ring_of[tensor] for tensor in self.layout.manifest.collected}
        while len(self.collected_s) < self.layout.inferences:
            arrives_s = self._arrives_s(outputs)
            if arrives_s <= 0:
                self._collect(outputs)
            elif not self._feed(given):
                if self.unchecked:
                    self._check()
                else:
                    self.workers.wait(arrives_s)
        while self.unchecked:
            self._check()
        self.memory_bytes = self.state.memory_bytes.tolist()

    def _feed(self, rings: Mapping[str, int]) -> bool:
        inference = len(self.fed_s)
        is_early = inference <= ALONE and inference > len(self.collected_s)
        is_full = inference - self.layout.sequences >= len(self.collected_s)
        if is_early or is_full or inference == self.layout.inferences:
            return False
        if not all(self.state.is_free(ring, inference) for ring in rings.values()):
            return False
        self.fed_s.append(time.monotonic())
        states = self.states.get(inference % self.layout.sequences, self.first)
        values = {**self.inputs[inference % len(self.inputs)], **states}
        for name, ring in rings.items():
            self.state.slot(ring, inference)[...] = values[name]
        self.state.counters[self.layout.feeder] += 1
        self.workers.wake()
        return True

    def _arrives_s(self, rings: Mapping[str, int]) -> float:
        """Seconds until the next outputs arrive; infinite until all stages have done the inference."""
        inference, now_s = len(self.collected_s), time.monotonic()
        stages = range(len(self.layout.manifest.stages))
        if not all(self.state.is_done(stage, inference, self.layout.feeder) for stage in stages):
            return math.inf
        return max(self.state.waits_s(ring, inference, now_s) for ring in rings.values())

    def _collect(self, rings: Mapping[str, int]) -> None:
        inference = len(self.collected_s)
        self.collected_s.append(time.monotonic())
        given = self.inputs[inference % len(self.inputs)]
        values = {tensor: self.state.slot(ring, inference).copy() for tensor, ring in rings.items()}
        host = self.layout.manifest.host
        if host is not None and self.joins is not None:
            read = {row.tensor: {**given, **values}[row.tensor] for row in host.inputs}
            values |= zip(host.outputs, self.joins.run(host.outputs, read), strict=True)
        outputs = {output.name: values[output.tensor] for output in self.layout.manifest.outputs}
        if self.first:
            sequence = inference % self.layout.sequences
            before = self.states.get(sequence, self.first)
            self.states[sequence] = next_states(self.layout.manifest, before, outputs)
        if inference == 0:
            self.outputs = outputs
        self.unchecked.append((inference, outputs))
        self.state.counters[self.layout.collector] += 1
        self.workers.wake()
        if len(self.unchecked) > _MOST_UNCHECKED:
            self._check()

    def _check(self) -> None:
        """Compare the outputs of an inference; other work comes first, as sequences may wait for it."""
        inference, outputs = self.unchecked.popleft()
        for name, value in outputs.items():
            apart = self.expected.difference(inference, name, value)
            self.worst[name] = max(self.worst.get(name, _Worst(0.0, inference)), _Worst(apart, inference))


def _result(
    manifest: Manifest, layout: Layout, host: _Host, seconds: FloatArray, allowed: Mapping[str, float]
) -> RunResult:
    stages = tuple(
        StageRun(
            stage.stage,
            stage.chips,
            len(stage.ops),
            stage.compute_s,
            *(float(value) for value in np.median(seconds[stage.stage], axis=0)),
        )
        for stage in manifest.stages
    )
    done_s = host.collected_s
    alone = [end_s - start_s for start_s, end_s in zip(host.fed_s, done_s, strict=True)][1:ALONE]
    waits_s = path_seconds(manifest, stages) / manifest.sequences if manifest.sequences else 0.0
    memory = {unit.chip: size for unit, size in zip(layout.units, host.memory_bytes, strict=True)}
    return RunResult(
        model=manifest.model,
        target=manifest.target,
        inferences=len(done_s) - ALONE,
        workers=len(layout.chips),
        cores=num_cores(),
        stages=stages,
        predicted_interval_s=manifest.interval_s,
        processor_interval_s=max(*chip_seconds(stages).values(), waits_s),
        wall_interval_s=(done_s[-1] - done_s[ALONE]) / (len(done_s) - ALONE - 1),
        predicted_latency_s=manifest.latency_s,
        latency_s=statistics.median(alone),
        difference=max(worst.apart for worst in host.worst.values()),
        tolerance=max(allowed.values()),
        is_equal=all(worst.apart <= allowed[name] for name, worst in host.worst.items()),
        sequences=manifest.sequences,
        memory=tuple(ChipMemory(row.chip, row.end, memory[row.chip]) for row in manifest.memory),
        outputs=host.outputs,
    )
