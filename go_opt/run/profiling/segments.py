"""Random segments of a model, cut like the stages of an export, and their processor seconds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import LongArray
from go_opt.env.target import Target
from go_opt.frontends.onnx.lowered import LoweredModel
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.run.cut.plan_models import cut_models, manifest_of
from go_opt.run.cut.reads import Reads
from go_opt.run.cut.source import model_of_plan
from go_opt.run.cut.stage_model import write_model
from go_opt.run.manifest import Manifest, Stage
from go_opt.run.pipeline.inputs import random_inputs
from go_opt.run.pipeline.sessions import Session, session

MOST_SEGMENTS: Final = 12  # per cut
_LEAST_RUNS, _MOST_RUNS, _ENOUGH_S = 6, 15, 0.1  # per segment


@dataclass(frozen=True)
class Segment:
    """Consecutive ops that ran as a stage."""

    ops: LongArray
    bytes: int  # that enter and leave
    seconds: float  # median processor time, including copies


class Segments:
    """Cuts a model at random places and measures the parts."""

    def __init__(self, path: Path, lowered: LoweredModel, graph: Graph, target: Target) -> None:
        self.whole = model_of_plan(lowered)
        self._reads = Reads(self.whole.graph, graph.op_index)
        self._path, self._graph, self._target = path, graph, target

    def measured(self, rng: np.random.Generator, folder: Path, until_s: float) -> Iterator[list[Segment]]:
        """The measured segments of successive random cuts, until a time of the monotonic clock."""
        while True:
            yield self._of_cut(random_cut(rng, self._graph.num_ops), rng, folder)
            if time.monotonic() >= until_s:
                return

    def _of_cut(self, place: LongArray, rng: np.random.Generator, folder: Path) -> list[Segment]:
        graph = self._graph
        plan = Plan.create(
            graph,
            self._target.name,
            self._target.fingerprint,
            placement=place,
            order=np.arange(graph.num_ops),
            fusion_group=np.arange(graph.num_ops),
            provenance="profile",
        )
        cut = cut_models(self.whole, self._reads, graph, self._target, plan)
        manifest = manifest_of(cut, graph, self._target, plan, lambda stage: f"{stage}.onnx")
        for stage, model in zip(manifest.stages, cut.models, strict=True):
            write_model(model, folder / stage.file)
        seconds = _seconds(folder, manifest, random_inputs(self._path, manifest, rng))
        for file in folder.iterdir():
            file.unlink()
        return [
            Segment(np.array([graph.op_index[op] for op in stage.ops]), _bytes(manifest, stage), seconds_of)
            for stage, seconds_of in zip(manifest.stages, seconds, strict=True)
        ]


def random_cut(rng: np.random.Generator, num_ops: int) -> LongArray:
    """[N] segment of each op; ops keep their order."""
    most = min(MOST_SEGMENTS, num_ops)
    between = np.arange(1, num_ops)
    cuts = np.sort(rng.permutation(between)[: int(rng.integers(0, most))])
    return np.searchsorted(cuts, np.arange(num_ops), side="right")


def _seconds(folder: Path, manifest: Manifest, values: dict[str, NDArray]) -> list[float]:
    """Median processor seconds of each stage.

    The stages alternate as in a pipeline, so that other stages evict a stage's data from the caches.
    """
    runs = [_Run(session(folder / stage.file), stage, values) for stage in manifest.stages]
    for rounds in range(_MOST_RUNS):
        if rounds >= _LEAST_RUNS and sum(sum(run.seconds) for run in runs) > _ENOUGH_S * len(runs):
            break
        for run in runs:
            run()
    return [statistics.median(run.seconds[1:]) for run in runs]


class _Run:
    """A stage that reads and writes arrays of ``values``, like a worker in shared memory."""

    def __init__(self, model: Session, stage: Stage, values: dict[str, NDArray]) -> None:
        self._model = model
        self._outputs = [row.tensor for row in stage.outputs]
        self._inputs = {row.tensor: values[row.tensor] for row in stage.inputs}
        results = self._model.run(self._outputs, self._inputs)
        self._results = [np.copy(result) for result in results]
        values.update(zip(self._outputs, self._results, strict=True))
        self.seconds: list[float] = []

    def __call__(self) -> None:
        start_s = time.process_time()
        for result, kept in zip(self._model.run(self._outputs, self._inputs), self._results, strict=True):
            kept[...] = result
        self.seconds.append(time.process_time() - start_s)


def _bytes(manifest: Manifest, stage: Stage) -> int:
    names = [row.tensor for row in stage.inputs] + [row.tensor for row in stage.outputs]
    return sum(manifest.tensor(name).bytes for name in names)
