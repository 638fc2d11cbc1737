"""A rival of models of kernels: GraphSAGE on configurations of whole graphs, trained whole or by segments.

Graph Segment Training (Cao et al., Learning Large Graph Property Prediction via Graph Segment Training,
NeurIPS 2023): a graph is cut into J segments, each embedded without the others. An update goes through S = 1
of them; a table keeps the last embeddings of the others. The graph's embedding is the sum over segments of
eta * embedding, with stale embedding dropout: eta is p + (1 - p) J / S for those embedded anew, and for the
others 1 with probability p, else 0. In expectation, this is the sum of all. At the end, the head is trained
on new embeddings of all segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from numpy.typing import NDArray

from tests.benchmarks.whole_graph_lessons import KINDS, Cut, Lesson, Piece

WIDE, LAYERS = 32, 2
BATCH, STEPS, HEAD_STEPS, RATE = 8, 400, 150, 3e-3
KEEP = 0.5  # p
SHARP = 20.0  # of the soft maximum over chips and links
RANK, MARGIN, LEAST_GAP = 0.1, 0.1, 0.02  # the last two of logarithms of intervals


class Net(nnx.Module):
    """GraphSAGE; shares of a chip's seconds weigh its ops; a head for chips; the busiest decides."""

    def __init__(self, num_features: int, num_chips: int, rngs: nnx.Rngs) -> None:
        self.num_chips = num_chips
        self.first = nnx.Linear(num_features, WIDE, rngs=rngs)
        self.kinds = nnx.Embed(KINDS, WIDE, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(5 * WIDE, WIDE, rngs=rngs) for _ in range(LAYERS)])
        self.hidden = nnx.Linear(WIDE + 4, WIDE, rngs=rngs)
        self.last = nnx.Linear(WIDE, 2, kernel_init=nnx.initializers.zeros_init(), rngs=rngs)
        self.host = nnx.Linear(WIDE, 2, kernel_init=nnx.initializers.zeros_init(), rngs=rngs)

    def embedded(self, piece: Sequence[jax.Array]) -> jax.Array:
        """[B, D, H] of each configuration's chips."""
        ops, edges, configs, kinds, chip, share = piece
        (size, batch), message = chip.shape, self.kinds(kinds)
        x = jnp.concatenate([jnp.broadcast_to(ops[:, None], (size, batch, ops.shape[1])), configs], axis=2)
        h = nnx.relu(self.first(x))
        for layer in self.layers:
            parts = [h]
            for source, to in ((edges[:, 0], edges[:, 1]), (edges[:, 1], edges[:, 0])):
                total = jax.ops.segment_sum(nnx.relu(h[source] + message), to, size + 1)[:size]
                degree = jax.ops.segment_sum(jnp.ones(len(to)), to, size + 1)[:size]
                parts += [total / 4, total / jnp.maximum(degree, 1)[:, None, None]]
            h = h + nnx.relu(layer(jnp.concatenate(parts, axis=2)))
        place = (chip + self.num_chips * jnp.arange(batch)).ravel()
        pooled = jax.ops.segment_sum((h * share[:, :, None]).reshape(-1, WIDE), place, batch * self.num_chips)
        return pooled.reshape(batch, self.num_chips, WIDE)

    def predicted(self, embedding: jax.Array, chips: jax.Array, loads: jax.Array) -> jax.Array:
        """[B] logarithms of the interval over the analytical model's."""
        h = nnx.relu(self.hidden(jnp.concatenate([embedding, chips], axis=2)))
        last = self.last(h)
        off = jnp.concatenate([last[:, :, 0], last[:, :, 1], self.host(h.mean(axis=1))], axis=1)
        return jax.nn.logsumexp(SHARP * (loads + off), axis=1) / SHARP


def loss_of(said: jax.Array, base: jax.Array, label: jax.Array) -> jax.Array:
    """As in calibrate_rivals.loss_of: log-MSE, and rank loss of pairs (Kaufman et al., MLSys 2021)."""
    said_s, true_s = said + base, label + base
    gaps, truly = said_s[:, None] - said_s[None], true_s[:, None] - true_s[None]
    pairs = jnp.abs(truly) > LEAST_GAP
    rank = jnp.where(pairs, nnx.relu(MARGIN - gaps * jnp.sign(truly)), 0.0).sum()
    return ((said - label) ** 2).mean() + RANK * rank / jnp.maximum(pairs.sum(), 1)


class Trained:
    """The network and its training; ``segment``: ops of a segment, 0 for whole graphs."""

    def __init__(self, lessons: Sequence[Lesson], segment: int, seed: int, batch: int = BATCH) -> None:
        self.segment, self.batch, self.rng = segment, batch, np.random.default_rng(seed)
        size, some = segment or max(len(lesson.ops) for lesson in lessons), lessons[0]
        self.cuts = [Cut(lesson, size) for lesson in lessons]
        self.num_edges, num_chips = max(cut.most_edges() for cut in self.cuts), some.chips.shape[1]
        net = Net(some.ops.shape[1] + some.configs.shape[2], num_chips, nnx.Rngs(seed))
        self.graph, self.state = nnx.split(net)
        shapes = [(len(cut), len(cut.lesson.label), num_chips, WIDE) for cut in self.cuts]
        self.tables = [np.zeros(shape, np.float32) for shape in shapes]  # history

    def train(self) -> Trained:
        update, state = self.update(STEPS)
        for _ in range(STEPS):
            state = self.step(update, *state)
        self.state = state[0]
        if self.segment:
            self._tune()
        return self

    def update(self, steps: int) -> tuple[Any, tuple[Any, Any]]:
        """An update, and the parameters with the moments of Adam that it starts from."""
        adam = _adam(steps)
        return partial(_update, self.graph, adam), (self.state, adam.init(self.state))

    def step(self, update: Any, *state: Any) -> tuple[Any, Any]:
        table, place, inputs = self.drawn()
        *state, table[place] = update(*state, *inputs)
        return tuple(state)

    def drawn(self) -> tuple[NDArray, Any, tuple[Any, ...]]:
        """A table, where in it the embedding goes, and what an update takes."""
        i = self.rng.integers(len(self.cuts))
        cut, table = self.cuts[i], self.tables[i]
        chosen, segment = self.rng.integers(table.shape[1], size=self.batch), int(self.rng.integers(len(cut)))
        kept = (self.rng.random((len(cut), self.batch)) < KEEP).astype(np.float32)
        kept[segment] = 0.0
        stale = np.einsum("jb,jbdh->bdh", kept, table[:, chosen])
        eta = np.float32(KEEP + (1 - KEEP) * len(cut))
        piece = cut.piece(segment, chosen, self.num_edges)
        return table, (segment, chosen), (piece, eta, stale, *_of_chips(cut.lesson, chosen))

    def memory_bytes(self) -> int:
        """Of the buffers that an update needs besides what it takes and gives."""
        update, state = self.update(1)
        compiled = _update.lower(*update.args, *state, *self.drawn()[2]).compile()
        return int(compiled.memory_analysis().temp_size_in_bytes)

    def embeddings(self, cut: Cut) -> NDArray:
        """[C, D, H] the sum over segments."""
        number, found, num_edges = len(cut.lesson.label), [], cut.most_edges()
        for begin in range(0, number, self.batch):
            chosen = np.minimum(np.arange(begin, begin + self.batch), number - 1)
            parts = (cut.piece(segment, chosen, num_edges) for segment in range(len(cut)))
            found.append(sum(np.asarray(_embedded(self.graph, self.state, piece)) for piece in parts))
        return np.concatenate(found)[:number]

    def predicted_s(self, lesson: Lesson) -> NDArray:
        embeddings = self.embeddings(Cut(lesson, self.segment or len(lesson.ops)))
        chips, loads, *_ = _of_chips(lesson, np.arange(len(lesson.label)))
        net = nnx.merge(self.graph, self.state)
        return lesson.base_s * np.exp(np.asarray(net.predicted(embeddings, chips, loads)))

    def _tune(self) -> None:
        """Train the head on new embeddings; what is before it gets no gradient."""
        fresh, (update, state) = [self.embeddings(cut) for cut in self.cuts], self.update(HEAD_STEPS)
        for _ in range(HEAD_STEPS):
            i = self.rng.integers(len(fresh))
            chosen = self.rng.integers(len(fresh[i]), size=self.batch)
            of_chips = _of_chips(self.cuts[i].lesson, chosen)
            *state, _ = update(*state, None, 0.0, fresh[i][chosen], *of_chips)
        self.state = state[0]


def _of_chips(lesson: Lesson, chosen: NDArray) -> tuple[NDArray, ...]:
    arrays = (lesson.chips, lesson.loads, np.log(lesson.base_s), lesson.label)
    return tuple(each[chosen].astype(np.float32) for each in arrays)


@partial(jax.jit, static_argnums=0)
def _embedded(graph: Any, state: Any, piece: Piece) -> jax.Array:
    return nnx.merge(graph, state).embedded(piece)


@lru_cache
def _adam(steps: int) -> optax.GradientTransformation:
    return optax.adam(optax.cosine_decay_schedule(RATE, steps))


@partial(jax.jit, static_argnums=(0, 1))
def _update(
    graph: Any, adam: Any, state: Any, moments: Any, piece: Any, eta: Any, stale: Any, *of: Any
) -> Any:
    """State, moments and the new embedding of the piece; without a piece, ``stale`` is that of all."""

    def loss(state: Any) -> tuple[jax.Array, jax.Array]:
        net, (chips, loads, base, label) = nnx.merge(graph, state), of
        fresh = jnp.zeros_like(stale) if piece is None else net.embedded(piece)
        return loss_of(net.predicted(eta * fresh + stale, chips, loads), base, label), fresh

    gradients, fresh = jax.grad(loss, has_aux=True)(state)
    changes, moments = adam.update(gradients, moments)
    return optax.apply_updates(state, changes), moments, fresh
