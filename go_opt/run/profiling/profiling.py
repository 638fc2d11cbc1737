"""Profiles a model on this machine: the results are a target and the seconds of each op."""

from __future__ import annotations

import csv
import io
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import FloatArray, LongArray
from go_opt.common.files import write_atomically
from go_opt.common.outputs import COSTS_MARK
from go_opt.costs.measured_costs import COLUMNS
from go_opt.env import parse_target
from go_opt.env.target import Target
from go_opt.errors import InvalidInputError
from go_opt.extras import check_installed
from go_opt.frontends.onnx.lowered import LoweredModel
from go_opt.frontends.onnx_frontend import import_onnx
from go_opt.model.bindings import Bindings, Numbers
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.model.states import without_states
from go_opt.run.cut.source import Reads, model_of_plan
from go_opt.run.cut.stages import cut_models, manifest_of, write_model
from go_opt.run.manifest import MANIFEST, Manifest, Stage, manifest_text
from go_opt.run.pipeline.inputs import random_inputs
from go_opt.run.pipeline.layout import Layout
from go_opt.run.pipeline.running import ALONE, expected_outputs, run_on
from go_opt.run.pipeline.workers import started

MAX_CHIPS: Final = 256
_HELD_OUT: Final = 5  # one cut in five is held out of the fit


@dataclass(frozen=True)
class Profile:
    """The results of a profile. Seconds are processor time on one thread."""

    graph: Graph
    target_text: str
    op_s: Mapping[str, float]  # by op name
    quantity_s: Mapping[str, float]  # seconds per unit of each quantity, including those of cuts
    segments: int  # number of measured segments
    held_out: int  # number of these that are held out of the fit
    rates_error: float  # mean relative error on the longest segment of each cut held out, predicted by rates
    ops_error: float  # the same, predicted by the seconds of ops

    @property
    def costs_text(self) -> str:
        """A CSV table for :func:`go_opt.with_measured_costs`."""
        text = io.StringIO(f"{COSTS_MARK}\n")
        text.seek(0, io.SEEK_END)
        table = csv.writer(text, lineterminator="\n")
        table.writerow(COLUMNS)
        table.writerows((op, "*", f"{seconds:.6g}") for op, seconds in self.op_s.items())
        return text.getvalue()


def profile(
    model: str | Path,
    out: str | Path | None = None,
    costs: str | Path | None = None,
    *,
    chips: int = 4,
    seconds: float = 30.0,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, Numbers] | None = None,
    trips: Mapping[str, int] | None = None,
    states: Mapping[str, str] | None = None,
) -> Profile:
    """Run random segments of a model in ONNX Runtime and fit the costs of ops on this machine.

    Args:
      model: an ONNX file with all its weights.
      out: write the target to this file.
      costs: write the seconds of ops to this CSV file.
      chips: number of processes of the target.
      seconds: duration of the measurement; a started cut is finished.
      seed: seed of the cuts and inputs.
      dims, values, trips, states: as :func:`go_opt.load`.

    Raises:
      InvalidInputError: an argument is wrong, or an extra is not installed.
      ModelError: the model cannot be cut.
      EnvironmentFailedError: it does not run.
    """
    check_installed("profile", "onnxruntime", "scipy")
    if not 1 <= chips <= MAX_CHIPS:
        raise InvalidInputError(f"chips must be between 1 and {MAX_CHIPS}, not {chips}.", field="chips")
    if not 0 < seconds <= 3600:
        raise InvalidInputError(f"seconds must be between 0 and 3600, not {seconds}.", field="seconds")
    graph, lowered = import_onnx(model, Bindings.of(dims, values, trips, states), "native")
    lowered.file.check_weights()

    from go_opt.run.profiling.fitting import (
        QUANTITIES,
        UNKNOWN,
        fit_ops,
        fit_rates,
        machine_target,
        op_quantities,
        relative_error,
    )
    from go_opt.run.profiling.profiling import MOST_SEGMENTS, Segments

    on = parse_target(machine_target(UNKNOWN, MOST_SEGMENTS, "machine"), "machine")
    segments = Segments(Path(model), lowered, graph, on)
    with tempfile.TemporaryDirectory(prefix="go-opt-profile-") as folder:
        cuts = list(segments.measured(np.random.default_rng(seed), Path(folder), seconds))
    held = [one for i, cut in enumerate(cuts) if i % _HELD_OUT == 1 for one in cut]
    fitted = [one for i, cut in enumerate(cuts) if i % _HELD_OUT != 1 for one in cut]
    longest = [one for one in held if one.seconds == one.longest_s]
    quantities = op_quantities(graph, on)
    rough = fit_rates(fitted, quantities)
    op_s, rates = fit_ops(fitted, quantities, rough)
    found = Profile(
        graph,
        machine_target(rates, chips, f"{graph.name}-machine"),
        dict(zip(graph.op_names, op_s.tolist(), strict=True)),
        dict(zip(QUANTITIES, rates.per_quantity_s.tolist(), strict=True))
        | {"byte at a cut": rates.per_cut_byte_s},
        len(held) + len(fitted),
        len(held),
        relative_error(longest, rough, rough.op_s(quantities)) if held else float("nan"),
        relative_error(longest, rates, op_s) if held else float("nan"),
    )
    for path, text in ((out, found.target_text), (costs, found.costs_text)):
        if path is not None:
            write_atomically(Path(path), text)
    return found


MOST_SEGMENTS: Final = 8  # per cut; each has a process
_INFERENCES: Final = 10  # in a row, after those that run alone


@dataclass(frozen=True)
class Segment:
    """Consecutive ops that ran as a stage."""

    ops: LongArray
    bytes: int  # that enter and leave
    seconds: float  # median processor time
    longest_s: float  # seconds of the longest segment of its cut


class Segments:
    """Cuts a model at random places and measures the parts.

    A cut may lie between ops that touch a state: the host sends it, and reads its next value.
    """

    def __init__(self, path: Path, lowered: LoweredModel, graph: Graph, target: Target) -> None:
        self.whole = model_of_plan(lowered)
        self._reads = Reads(self.whole.graph, graph.op_index)
        self._path, self._target = path, target
        self._graph = without_states(graph, lambda name: True)
        states = lowered.states(graph.bindings).states
        self._kept = {name for state in states for name in (state.read, state.next)}

    def measured(self, rng: np.random.Generator, folder: Path, seconds: float) -> Iterator[list[Segment]]:
        """The measured segments of successive random cuts, until ``seconds`` have passed.

        Raises:
          EnvironmentFailedError: the model does not run.
        """
        with started(range(min(MOST_SEGMENTS, self._graph.num_ops))) as workers:
            inputs: dict[str, NDArray] = {}
            while True:
                manifest = self._cut(random_cut(rng, self._graph.num_ops), folder)
                if not inputs:
                    inputs = random_inputs(self._path, manifest, rng)
                    expected = expected_outputs(self._path, manifest, [inputs], ALONE + _INFERENCES)
                    until_s = time.monotonic() + seconds
                layout = Layout(manifest, ALONE + _INFERENCES)
                _, measured_s = run_on(workers, folder, layout, [inputs], expected)
                yield self._segments(manifest, np.median(measured_s[:, :, 0], axis=1))
                if time.monotonic() >= until_s:
                    return
                for file in folder.iterdir():
                    file.unlink()

    def _cut(self, place: LongArray, folder: Path) -> Manifest:
        """Write the stages of a cut."""
        each = np.arange(self._graph.num_ops)
        plan = Plan.create(
            self._graph,
            self._target.name,
            self._target.fingerprint,
            placement=place,
            order=each,
            fusion_group=each,
            provenance="profile",
        )
        cut = cut_models(self.whole, self._reads, self._graph, self._target, plan)
        manifest = manifest_of(cut, self._graph, self._target, plan, lambda stage: f"{stage}.onnx")
        for stage, model in zip(manifest.stages, cut.models, strict=True):
            write_model(model, folder / stage.file)
        (folder / MANIFEST).write_text(manifest_text(manifest), "utf-8")
        return manifest

    def _segments(self, manifest: Manifest, seconds: FloatArray) -> list[Segment]:
        longest_s = float(seconds.max())
        return [
            Segment(
                np.array([self._graph.op_index[op] for op in stage.ops]),
                self._bytes(manifest, stage),
                float(seconds[stage.stage]),
                longest_s,
            )
            for stage in manifest.stages
        ]

    def _bytes(self, manifest: Manifest, stage: Stage) -> int:
        """What enters and leaves a stage; states would stay in it."""
        names = [row.tensor for row in stage.inputs if row.tensor not in self._kept]
        names += [row.tensor for row in stage.outputs if row.readers or row.tensor not in self._kept]
        return sum(manifest.tensor(name).bytes for name in names)


def random_cut(rng: np.random.Generator, num_ops: int) -> LongArray:
    """[N] segment of each op; ops keep their order."""
    most = min(MOST_SEGMENTS, num_ops)
    between = np.arange(1, num_ops)
    cuts = np.sort(rng.permutation(between)[: int(rng.integers(0, most))])
    return np.searchsorted(cuts, np.arange(num_ops), side="right")
