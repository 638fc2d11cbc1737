"""Rivals of go-opt calibrate, on its samples: a fit of five terms, gradient boosting, and GraphSAGE.

The last two are trained on many machines drawn at random. What they are told of a new machine is a fit to its
samples: the five terms, or what go-opt calibrate finds. They predict by how much the seconds of an op differ.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zlib import crc32

import jax
import jax.numpy as jnp
import lightgbm
import numpy as np
import optax
from flax import nnx
from numpy.typing import NDArray
from scipy.optimize import nnls

import go_opt
from go_opt.calibration.chip_fit import ChipFit, Observations, observe
from go_opt.calibration.samples import Sample
from go_opt.env import Target, cost_tables, evaluate_plan
from go_opt.env.cost.shapes import product_shapes
from go_opt.env.cost.tables import tables_with_effects
from go_opt.env.target.kinds import ideal_parameters
from go_opt.model.graph import MATRIX, Graph

TRAINING = ("mobilenet_v2", "resnet50", "squeezenet", "shufflenet", "efficientnet_b0", "xception")
TRAINING_MACHINES, STEPS = 50, 6000
DEPTHWISE_INNER = 25  # multiply-adds of an output: one channel's 5x5
OVERHEAD_S, LEAST_S = 1e-7, 1e-12
MOST_TYPES = 64
MOST_OFF = 4.0  # standard deviations of an input, and logarithm of what is predicted

Table = Callable[[Graph, Sequence[Sample]], NDArray]


@dataclass(frozen=True, eq=False)
class Ops:
    """What the seconds [N] of ops are predicted from."""

    graph: Graph
    peak_s: NDArray  # [N] by the peak rates
    shapes: NDArray  # [4, N]
    elements: NDArray  # [N] written

    @property
    def quantities(self) -> NDArray:
        """[N, 5] seconds at peak of products, depthwise products and other work; elements; 1."""
        is_matrix = self.graph.op_class == MATRIX
        is_depthwise = is_matrix & (self.shapes[2] <= DEPTHWISE_INNER)
        of_class = (is_matrix & ~is_depthwise, is_depthwise, ~is_matrix)
        columns = [self.peak_s * each for each in of_class]
        return np.stack([*columns, self.elements * 1e-12, np.ones(len(self.peak_s))], axis=1)


def chip_quantities(ops: Ops, seen: Observations) -> NDArray:
    """[R, 5] of each chip for an inference."""
    values = np.pad(ops.quantities, ((0, 1), (0, 0)))  # relays
    rows = np.zeros((len(seen.turns), 5))
    np.add.at(rows, seen.row_of[seen.kernel_of], values[seen.op])
    return rows / seen.turns[:, None]


def five_terms(ops: Ops, sheet: Target, samples: Sequence[Sample]) -> NDArray:
    """[5] rates: non-negative least squares of relative errors of chips, drawn a little to the data sheet."""
    seen = observe(ops.graph, sheet, [sample for sample in samples if np.isfinite(sample.interval_s)])
    left = chip_quantities(ops, seen) / seen.seconds[:, None]
    scale = np.maximum(np.linalg.norm(left, axis=0), 1e-30)
    near = 0.02 * np.sqrt(len(left)) * np.eye(5)
    right = np.concatenate([np.ones(len(left)), near @ (np.array([1.0, 1.0, 1.0, 0.0, OVERHEAD_S]) * scale)])
    return nnls(np.concatenate([left / scale, near]), right)[0] / scale


def seconds_of(ops: Ops, rates: NDArray) -> NDArray:
    """[N] seconds of compute; the overhead of a kernel is the target's."""
    seconds = ops.quantities[:, :4] @ rates[:4] + max(rates[4] - OVERHEAD_S, 0.0)
    return np.maximum(seconds, LEAST_S)


@dataclass(frozen=True, eq=False)
class Told:
    """What a fit to samples of a machine says."""

    base_s: NDArray  # [N] seconds of ops
    terms: NDArray  # [5]


def told_by_terms(ops: Ops, sheet: Target, samples: Sequence[Sample]) -> Told:
    rates = five_terms(ops, sheet, samples)
    return Told(seconds_of(ops, rates), rates)


def told_by_calibrate(ops: Ops, sheet: Target, samples: Sequence[Sample]) -> Told:
    ran = [sample for sample in samples if np.isfinite(sample.interval_s)]
    fit = ChipFit(ops.graph, sheet, observe(ops.graph, sheet, ran))
    fit.run(0)
    figures = fit.best()[0][1]
    kind = figures.kind(sheet.kinds[0])
    found = replace(sheet, kinds=(kind,), simulator=replace(sheet.simulator, kinds=(kind.simulator,)))
    op_s = tables_with_effects(ops.graph, found, found.simulator).op_s[0]
    return Told(np.maximum(op_s, LEAST_S), figures.terms)


def features(ops: Ops, told: Told) -> NDArray:
    """[N, 13] of ops on a machine that a fit describes."""
    numbers = [np.log2(ops.shapes).T, np.log2(ops.elements)[:, None], np.log(ops.peak_s + 1e-10)[:, None] / 3]
    numbers += [ops.graph.op_class[:, None] == MATRIX, np.log(told.base_s)[:, None] / 3]
    machine = np.tile(np.log(np.maximum(told.terms, 1e-9)), (len(ops.peak_s), 1))
    return np.concatenate([*numbers, machine], axis=1).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Lesson:
    """A graph on a machine, as trained on: its ops, what was fitted, and the truth."""

    ops: Ops
    told: Told
    true_s: NDArray  # [N]

    @property
    def label(self) -> NDArray:
        off = np.log(np.maximum(self.true_s, LEAST_S) / self.told.base_s)
        return np.clip(off, -MOST_OFF, MOST_OFF)


def ops_of(graph: Graph, sheet: Target) -> Ops:
    written = np.zeros(graph.num_ops)
    is_written = graph.tensor_producer >= 0
    np.add.at(written, graph.tensor_producer[is_written], graph.tensor_elements[is_written])
    shapes = np.array(product_shapes(graph))
    peak_s = tables_with_effects(graph, sheet, ideal_parameters(1)).op_s[0]
    return Ops(graph, peak_s, shapes, np.maximum(written, 1.0))


def learned_tables(sheet: Target, drawn: Callable, planned: Callable, trained: Path) -> dict[str, Table]:
    """By rival, the seconds of a graph's ops by samples of it; ``trained`` keeps what was trained."""
    if not trained.exists():
        lessons = list(_lessons(sheet, drawn, planned))
        nets = [GraphSage([pair[i] for pair in lessons], STEPS) for i in range(2)]
        trained.write_bytes(pickle.dumps((_boosted([pair[0] for pair in lessons]), *nets)))
    boosted, on_terms, on_fit = pickle.loads(trained.read_bytes())

    def of(tell: Callable[..., Told], predict: Callable[[Ops, Told], Any]) -> Table:
        def table(graph: Graph, samples: Sequence[Sample]) -> NDArray:
            ops = ops_of(graph, sheet)
            told = tell(ops, sheet, samples)
            return told.base_s * predict(ops, told) * (ops.peak_s > 0)

        return table

    def boosting(ops: Ops, told: Told) -> NDArray:
        return np.exp(boosted.predict(features(ops, told), num_threads=1))

    return {
        "five terms": of(told_by_terms, lambda ops, told: 1.0),
        "lightgbm": of(told_by_terms, boosting),
        "GraphSAGE": of(told_by_terms, on_terms.ratio),
        "GraphSAGE on the fit": of(told_by_calibrate, on_fit.ratio),
    }


def _lessons(sheet: Target, drawn: Callable, planned: Callable) -> Iterator[tuple[Lesson, Lesson]]:
    """Training graphs on training machines, each with one, three or five plans: told by either fit."""
    from tests.benchmarks.calibrate_machines import op_seconds

    rng = np.random.default_rng(0)
    for name in TRAINING:
        graph = go_opt.load(f"zoo:{name}")
        ops, plans = ops_of(graph, sheet), [planned(graph, sheet)]
        for seed in range(4):
            factor = dict(zip(graph.op_names, np.exp(0.5 * rng.standard_normal(graph.num_ops)), strict=True))

            def disturbed(graph: Graph, shaped_s: NDArray, factor: dict[str, float] = factor) -> NDArray:
                return shaped_s * np.array([factor.get(name, 1.0) for name in graph.op_names])

            plans.append(planned(graph, sheet, disturbed, seed, 6))
        for number in range(TRAINING_MACHINES):
            machine, own, samples = drawn(1000 + number), replace(graph), []
            with op_seconds(machine.op_s):
                for plan in plans[: int(rng.choice([1, 3, 5]))]:
                    there = replace(plan, target_fingerprint=machine.target.fingerprint)
                    samples.append(Sample(plan, 1.0, evaluate_plan(own, machine.target, there).compute_s))
                true_s = cost_tables(own, machine.target).op_s[0]
            told = [tell(ops, sheet, samples) for tell in (told_by_terms, told_by_calibrate)]
            yield Lesson(ops, told[0], true_s), Lesson(ops, told[1], true_s)


def _boosted(lessons: Sequence[Lesson]) -> lightgbm.Booster:
    """LightGBM on the logarithm of the ratio to the five terms."""
    keep = np.concatenate([one.true_s > 0 for one in lessons])
    rows = np.concatenate([features(one.ops, one.told) for one in lessons])[keep]
    labels = np.concatenate([one.label for one in lessons])[keep]
    options = {"objective": "l2", "num_leaves": 63, "learning_rate": 0.1, "verbose": -1, "num_threads": 1}
    return lightgbm.train(options | {"seed": 0}, lightgbm.Dataset(rows, labels), 300)


class Net(nnx.Module):
    """Two layers of GraphSAGE (Hamilton et al. 2017), sum and mean of both directions, and a head."""

    def __init__(self, wide: int, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(wide, 64, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(64 * 5, 64, rngs=rngs) for _ in range(2)])
        self.hidden = nnx.Linear(64, 64, rngs=rngs)
        self.last = nnx.Linear(64, 1, kernel_init=nnx.initializers.zeros_init(), rngs=rngs)

    def __call__(self, x: jax.Array, edges: jax.Array) -> jax.Array:
        h, num_ops = nnx.relu(self.first(x)), len(x)
        for layer in self.layers:
            parts = [h]
            for source, to in ((edges[0], edges[1]), (edges[1], edges[0])):
                total = jax.ops.segment_sum(h[source], to, num_ops + 1)[:num_ops]
                degree = jax.ops.segment_sum(jnp.ones(len(to)), to, num_ops + 1)[:num_ops]
                parts += [total / 4, total / jnp.maximum(degree, 1)[:, None]]
            h = h + nnx.relu(layer(jnp.concatenate(parts, axis=1)))
        return self.last(nnx.relu(self.hidden(h)))[:, 0]


def loss_of(model: Net, batch: tuple[jax.Array, ...]) -> jax.Array:
    """log-MSE and pairwise rank loss (Kaufman et al., A learned performance model for TPUs, MLSys 2021):

    mean (log y' - log y)^2 + 0.1 mean over pairs relu(0.1 - (log y'_i - log y'_j) sign(y_i - y_j))
    """
    x, edges, base, label, mask = batch
    predicted = model(x, edges)
    mse = (jnp.where(mask, predicted - label, 0.0) ** 2).sum() / mask.sum()
    said, true = predicted + base, label + base
    gaps, truly = said[:, None] - said[None], true[:, None] - true[None]
    pairs = mask[:, None] & mask[None] & (jnp.abs(truly) > 0.05)
    rank = jnp.where(pairs, nnx.relu(0.1 - gaps * jnp.sign(truly)), 0.0).sum() / jnp.maximum(pairs.sum(), 1)
    return mse + 0.1 * rank


class GraphSage:
    """The network, trained for so many steps."""

    def __init__(self, lessons: Sequence[Lesson], steps: int) -> None:
        rows = np.concatenate([features(one.ops, one.told) for one in lessons])
        self._mean, self._std = rows.mean(axis=0), rows.std(axis=0) + 1e-6
        self._size = max(one.ops.graph.num_ops for one in lessons)
        self._num_edges = max(one.ops.graph.num_edges for one in lessons)
        model = Net(rows.shape[1] + MOST_TYPES, nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adam(optax.cosine_decay_schedule(2e-3, steps)), wrt=nnx.Param)

        @nnx.jit
        def step(model: Net, optimizer: Any, batch: tuple[jax.Array, ...]) -> None:
            gradients = nnx.grad(loss_of)(model, batch)
            optimizer.update(model, gradients)

        rng = np.random.default_rng(0)
        for _ in range(steps):
            step(model, optimizer, self._batch(lessons[rng.integers(len(lessons))]))
        self._wide = rows.shape[1] + MOST_TYPES
        self._state = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(model)))

    def _inputs(self, ops: Ops, told: Told, size: int, num_edges: int) -> tuple[NDArray, NDArray]:
        rows = np.clip((features(ops, told) - self._mean) / self._std, -MOST_OFF, MOST_OFF)
        types = np.zeros((len(rows), MOST_TYPES), np.float32)
        types[np.arange(len(rows)), [crc32(name.encode()) % MOST_TYPES for name in ops.graph.op_types]] = 1.0
        x = np.zeros((size, rows.shape[1] + MOST_TYPES), np.float32)
        x[: len(rows)] = np.concatenate([rows, types], axis=1)
        edges = np.full((2, num_edges), size, np.int32)
        edges[:, : ops.graph.num_edges] = ops.graph.edge_src, ops.graph.edge_dst
        return x, edges

    def _batch(self, one: Lesson) -> tuple[NDArray, ...]:
        def padded(values: NDArray) -> NDArray:
            return np.pad(values, (0, self._size - len(values)))

        base = np.log(one.told.base_s).astype(np.float32)
        inputs = self._inputs(one.ops, one.told, self._size, self._num_edges)
        return *inputs, padded(base), padded(one.label.astype(np.float32)), padded(one.true_s > 0)

    def ratio(self, ops: Ops, told: Told) -> NDArray:
        model = Net(self._wide, nnx.Rngs(0))
        state = nnx.state(model)
        nnx.replace_by_pure_dict(state, self._state)
        nnx.update(model, state)
        x, edges = self._inputs(ops, told, ops.graph.num_ops, ops.graph.num_edges)
        return np.exp(np.clip(np.asarray(model(x, edges)), -MOST_OFF, MOST_OFF))
