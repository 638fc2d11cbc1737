"""Profiles a model on this machine: the results are a target and the seconds of each op.

Random segments of the model run as the stages of a plan do. Rates and op seconds are fitted to the processor
seconds of these by non-negative least squares. Errors are relative to the longest segment of the cut, because
the busiest stage of a plan is its interval. Otherwise the fit spreads the start of short segments, which no
rate describes, over the ops of long ones.
"""

from __future__ import annotations

import csv
import io
import math
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import BoolArray, FloatArray, LongArray
from go_opt.common.files import write_atomically
from go_opt.common.outputs import COSTS_MARK
from go_opt.costs.measured_costs import COLUMNS
from go_opt.env import parse_target
from go_opt.env.cost.tables import CostTables, bytes_out, cost_tables
from go_opt.env.target import Target
from go_opt.errors import InvalidInputError
from go_opt.extras import check_installed
from go_opt.frontends.onnx.lowered import LoweredModel
from go_opt.frontends.onnx_frontend import import_onnx
from go_opt.model.bindings import Bindings, Numbers
from go_opt.model.graph import MATRIX, VECTOR, Graph
from go_opt.model.plan import Plan
from go_opt.model.states import without_states
from go_opt.run.cut.source import Reads, model_of_plan
from go_opt.run.cut.stages import cut_models, write_model
from go_opt.run.manifest import MANIFEST, Manifest, Stage, manifest_text
from go_opt.run.pipeline.check import random_inputs
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
        _, models, manifest = cut_models(
            self.whole, self._reads, self._graph, self._target, plan, lambda stage: f"{stage}.onnx"
        )
        for stage, model in models.items():
            write_model(model, folder / f"{stage}.onnx")
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


QUANTITIES: Final = ("matrix FLOP", "vector FLOP", "byte moved", "op", "transcendental element")
_TRANSCENDENTAL: Final = frozenset(
    "Acos Acosh Asin Asinh Atan Atanh BiasGelu Celu Cos Cosh Elu Erf Exp FastGelu Gelu LRN Log LogSoftmax "  # noqa: SIM905
    "Mish Pow Selu Sigmoid Sin Sinh Softmax Softplus Swish Tan Tanh".split()
)


def op_quantities(graph: Graph, target: Target) -> FloatArray:
    """[N, len(QUANTITIES)] of each op."""
    tables: CostTables = cost_tables(graph, target)
    is_transcendental = np.isin(graph.op_types, list(_TRANSCENDENTAL))
    return np.stack(
        [
            graph.op_flops * (graph.op_class == MATRIX),
            graph.op_flops * (graph.op_class == VECTOR),
            tables.op_bytes().astype(np.float64),
            np.ones(graph.num_ops),
            bytes_out(tables) / 4.0 * is_transcendental,  # float32
        ],
        axis=1,
    )


# Error of a measurement relative to the deviation of an op from its rates.
_TRUSTS: Final = (0.03, 0.1, 0.3, 1.0, 3.0)
_FOLDS: Final = 4  # of the cross-validation over segments that chooses the trust
_LEAST_OP_S: Final = 1e-7  # below this, an op's relative deviation is meaningless
# Orders of magnitude of the rates of a processor and of a byte at a cut. Segments of one model hardly tell
# apart quantities that all its ops have in the same proportion; then only these ratios do.
_TYPICAL_S: Final = (1e-11, 1e-10, 2e-11, 1e-5, 1e-8, 1e-10)
_TYPICAL_TRUST: Final = 0.1  # error of a segment relative to the deviation of a rate from these ratios
_ROUNDS: Final = 20  # usually 2 to 5


@dataclass(frozen=True)
class Rates:
    """Seconds per unit of each quantity."""

    per_quantity_s: FloatArray  # of QUANTITIES
    per_cut_byte_s: float  # per byte that enters or leaves a segment, for copies, layout changes and calls

    def op_s(self, quantities: FloatArray) -> FloatArray:
        """[N] seconds of each op as a kernel of the cost model, plus those of its transcendental elements."""
        is_moving = self.moves(quantities)
        seconds: FloatArray = _binding(quantities, is_moving) @ self.per_quantity_s
        return seconds

    def moves(self, quantities: FloatArray) -> BoolArray:
        """[N] whether an op takes longer to move its bytes than to compute."""
        terms = quantities * self.per_quantity_s
        is_moving: BoolArray = terms[:, 2] > terms[:, :2].sum(axis=1)
        return is_moving

    def segment_s(self, segment: Segment, op_s: FloatArray) -> float:
        """Predicted seconds of a segment."""
        return float(op_s[segment.ops].sum() + segment.bytes * self.per_cut_byte_s)


def fit_rates(segments: Sequence[Segment], quantities: FloatArray) -> Rates:
    """The rates that fit the seconds of the segments best, if an op takes what a kernel of a target does.

    Alternates between which ops move bytes for longer than they compute, and the rates.
    """
    seconds = _seconds(segments)
    rates = Rates(np.array(_TYPICAL_S[:-1]), _TYPICAL_S[-1])
    predicted = [rates.segment_s(one, rates.op_s(quantities)) for one in segments]
    typical = np.array(_TYPICAL_S) * np.median(seconds / predicted)
    rates = Rates(typical[:-1], float(typical[-1]))
    near = _TYPICAL_TRUST * math.sqrt(len(segments)) / typical
    scale = 1 / _longest(segments)
    right = np.concatenate([seconds * scale, near * typical])
    for _ in range(_ROUNDS):
        is_moving = rates.moves(quantities)
        terms = _binding(quantities, is_moving)
        rows = np.array([[*terms[one.ops].sum(axis=0), one.bytes] for one in segments])
        solution = _solve(np.concatenate([rows * scale[:, None], np.diag(near)]), right)
        rates = Rates(solution[:-1], float(solution[-1]))
        if (rates.moves(quantities) == is_moving).all():
            break
    return rates


def _binding(quantities: FloatArray, is_moving: BoolArray) -> FloatArray:
    """[N, len(QUANTITIES)] without the FLOPs of ops that move bytes for longer, and the bytes of others."""
    counts: FloatArray = np.where(is_moving[:, None], (0, 0, 1, 1, 1), (1, 1, 0, 1, 1)) * quantities
    return counts


def fit_ops(segments: Sequence[Segment], quantities: FloatArray, rates: Rates) -> tuple[FloatArray, Rates]:
    """[N] seconds of each op, regularised towards the rates, and the rates with a refitted cost of cuts.

    Cross-validation over segments chooses the strength of the regularisation.
    """
    folds = [
        (segments[i::_FOLDS], [one for k, one in enumerate(segments) if k % _FOLDS != i])
        for i in range(min(_FOLDS, len(segments) - 1))
    ]

    def error(trust: float) -> float:
        fits = [(out, *_near_rates(rest, quantities, rates, trust)) for out, rest in folds]
        return sum(relative_error(out, refined, op_s) for out, op_s, refined in fits)

    return _near_rates(segments, quantities, rates, min(_TRUSTS, key=error))


def _near_rates(
    segments: Sequence[Segment], quantities: FloatArray, rates: Rates, trust: float
) -> tuple[FloatArray, Rates]:
    expected = np.maximum(rates.op_s(quantities), _LEAST_OP_S)
    num_ops = len(expected)
    rows = np.zeros((len(segments), num_ops + 1))
    for row, segment in zip(rows, segments, strict=True):
        row[segment.ops] = expected[segment.ops]
        row[-1] = segment.bytes
    rows /= _longest(segments)[:, None]
    near = trust * np.eye(num_ops, num_ops + 1)
    right = np.concatenate([_seconds(segments) / _longest(segments), np.full(num_ops, trust)])
    solution = _solve(np.concatenate([rows, near]), right)
    return solution[:-1] * expected, Rates(rates.per_quantity_s, float(solution[-1]))


def relative_error(segments: Sequence[Segment], rates: Rates, op_s: FloatArray) -> float:
    """Mean absolute error of the predictions, relative to the longest segment of the same cut."""
    predicted = np.array([rates.segment_s(segment, op_s) for segment in segments])
    return float((np.abs(predicted - _seconds(segments)) / _longest(segments)).mean())


def _seconds(segments: Sequence[Segment]) -> FloatArray:
    return np.array([segment.seconds for segment in segments])


def _longest(segments: Sequence[Segment]) -> FloatArray:
    return np.array([segment.longest_s for segment in segments])


def _solve(rows: FloatArray, right: FloatArray) -> FloatArray:
    """Solve with columns scaled to length 1, because quantities differ by orders of magnitude."""
    from scipy.optimize import nnls

    scale = np.linalg.norm(rows, axis=0)
    scale[scale == 0] = 1.0
    solution: FloatArray = nnls(rows / scale, right)[0] / scale
    return solution


KIND: Final = "process"
_LEAST_S: Final = 1e-15  # for a quantity with a fitted cost of zero
UNKNOWN: Final = Rates(np.full(5, 1e-10), 1e-10)  # before anything is measured


def machine_target(rates: Rates, chips: int, name: str) -> str:
    """The text of a target file.

    The file has no rate for transcendental elements: only the costs of ops contain these seconds.
    """
    matrix_s, vector_s, byte_s, op_s, _ = (max(float(value), _LEAST_S) for value in rates.per_quantity_s)
    cut_rate = 1 / max(rates.per_cut_byte_s, _LEAST_S)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // chips
    return f"""\
# Measured by `go-opt profile` in processor seconds of one thread: processes of ONNX Runtime as chips.
name = "{name}"
description = "{chips} processes of ONNX Runtime on one machine, one thread each"
native_dtype = "float32"
overlap = false # a process copies its tensors itself

[constraints]
acyclic = true
no_skip = "off"
triangle = "off"

[topology]
kind = "all_to_all"
rate_bytes_per_s = {cut_rate:.6g} # a tensor that leaves or enters is copied and laid out anew
latency_s = 0.0

[host]
in_bytes_per_s = {cut_rate:.6g}
out_bytes_per_s = {cut_rate:.6g}

[[kinds]]
name = "{KIND}"
count = {chips}
sram_bytes = {memory} # a share of the machine's memory
sram_bytes_per_s = {1 / byte_s:.6g}
kernel_overhead_s = {op_s:.6g}
pays_transfers = true

[kinds.matrix_flops_per_s]
default = {1 / matrix_s:.6g}

[kinds.vector_flops_per_s]
default = {1 / vector_s:.6g}
"""
