"""Random segments of a model, which run as the stages of a plan do, and their processor seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import FloatArray, LongArray
from go_opt.env.target import Target
from go_opt.frontends.onnx.lowered import LoweredModel
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.model.states import without_states
from go_opt.run.cut.plan_models import cut_models, manifest_of
from go_opt.run.cut.reads import Reads
from go_opt.run.cut.source import model_of_plan
from go_opt.run.cut.stage_model import write_model
from go_opt.run.manifest import MANIFEST, Manifest, Stage, manifest_text
from go_opt.run.pipeline.inputs import random_inputs
from go_opt.run.pipeline.layout import Layout
from go_opt.run.pipeline.running import ALONE, expected_outputs, run_on
from go_opt.run.pipeline.workers import started

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
