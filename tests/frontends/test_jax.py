"""JAX functions as graphs: every rule on a function small enough to cost by hand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.env.copies.splits import split_graph
from go_opt.errors import GraphError, ModelError
from go_opt.frontends.jax_frontend import from_jax, from_stablehlo
from go_opt.frontends.networkx_frontend import from_networkx, to_networkx
from go_opt.model.codecs.graph_json import graph_from_dict, graph_to_dict
from go_opt.model.graph import DATA_MOVEMENT, INPUT, MATRIX, NO_PRODUCER, VECTOR, WEIGHT, Graph
from go_opt.search.splits.block_ways import blocks_of, splits_of_blocks
from go_opt.solver.verify.splits import broken_splits
from tests.shaped import heads_of


def _shape(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def _types(graph: Graph) -> list[str]:
    return list(graph.op_types)


def _reads(graph: Graph, op: str) -> dict[str, int]:
    """Tensor -> elements that the op touches."""
    rows = graph.reader_op == graph.op_index[op]
    names = [graph.tensor_names[k] for k in graph.reader_tensor[rows]]
    return dict(zip(names, graph.reader_elements[rows].tolist(), strict=True))


def _sources(graph: Graph, kind: int) -> dict[str, int]:
    """Tensor -> elements of the weights or of the inputs."""
    return {
        name: int(elements)
        for name, elements, k in zip(
            graph.tensor_names, graph.tensor_elements, graph.tensor_kind, strict=True
        )
        if k == kind
    }


def _matrix_flops(graph: Graph) -> float:
    return float(graph.op_flops[graph.op_class == MATRIX].sum())


def test_a_dense_layer() -> None:
    def dense(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return jax.nn.relu(x @ params["w"] + params["b"])

    graph = from_jax(dense, {"w": _shape(8, 16), "b": _shape(16)}, _shape(2, 8))
    assert graph.name == "dense"
    assert graph.op_names == ("dot_general", "add", "max")
    assert _types(graph) == ["MatMul", "Add", "Max"]
    assert graph.op_class.tolist() == [MATRIX, VECTOR, VECTOR]
    # 2 · 2·16·8 for the product, 1 per element of [2, 16] after it.
    assert graph.op_flops.tolist() == [512.0, 32.0, 32.0]
    assert _sources(graph, WEIGHT) == {"params['w']": 128, "params['b']": 16}
    assert _sources(graph, INPUT) == {"x": 16}
    # The bias is broadcast by a view: only its 16 elements are read.
    assert _reads(graph, "add") == {"params['b']": 16, "dot_general": 32}
    assert graph.tensor_is_output.tolist().index(True) == graph.tensor_names.index("max")


def test_weight_argnums_override_the_guess() -> None:
    graph = from_jax(lambda w, x: w @ x, _shape(4, 4), _shape(4), weight_argnums=(0,))
    assert _sources(graph, WEIGHT) == {"w": 16}
    graph = from_jax(lambda w, x: w["a"] @ x, {"a": _shape(4, 4)}, _shape(4), weight_argnums=())
    assert _sources(graph, INPUT) == {"w['a']": 16, "x": 4}
    with pytest.raises(ModelError, match="there is no argument 2"):
        from_jax(lambda x: x, _shape(1), weight_argnums=[2])


def test_batched_and_grouped_matrix_ops() -> None:
    graph = from_jax(lambda a, b: jnp.einsum("bij,bkj->bik", a, b), _shape(3, 4, 5), _shape(3, 6, 5))
    assert graph.op_flops.tolist() == [2.0 * 3 * 4 * 6 * 5]

    def depthwise(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", feature_group_count=8)

    graph = from_jax(depthwise, _shape(1, 8, 10, 10), _shape(8, 1, 3, 3))
    # Each of 8·10·10 outputs meets one channel's 3x3 window.
    assert graph.op_flops.tolist() == [2.0 * 800 * 9]

    def upsample(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.conv_transpose(x, w, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    graph = from_jax(upsample, _shape(1, 8, 8, 4), _shape(2, 2, 4, 6))
    # Every one of 8·8·4 input elements meets a window of 2·2·6 once: 2 · 256 · 24.
    assert _matrix_flops(graph) == 12288.0


def test_views_are_no_kernels() -> None:
    def views(x: jax.Array) -> jax.Array:
        y = jnp.squeeze(jnp.expand_dims(x.reshape(2, 8), 0), 0)
        return jnp.tanh(jax.lax.stop_gradient(jnp.broadcast_to(y, (3, 2, 8))))

    graph = from_jax(views, _shape(16))
    assert graph.op_names == ("tanh",)
    assert graph.op_flops.tolist() == [48.0]
    assert _reads(graph, "tanh") == {"x": 16}


def test_a_stack_is_one_concat() -> None:
    graph = from_jax(lambda x, y: jnp.stack([x, y], axis=1), _shape(4, 8), _shape(4, 8))
    assert _types(graph) == ["Concat"]
    assert graph.op_flops.tolist() == [0.0]


def test_a_floating_cast_is_a_kernel_only_as_is() -> None:
    def cast(x: jax.Array) -> jax.Array:
        return jnp.tanh(x.astype(jnp.bfloat16))

    assert _types(from_jax(cast, _shape(4))) == ["Tanh"]
    assert _types(from_jax(cast, _shape(4), precision="as-is")) == ["Cast", "Tanh"]
    assert _types(from_jax(cast, _shape(4, dtype=jnp.int32))) == ["Cast", "Tanh"]


def test_constants_fold_into_weights() -> None:
    def mask(x: jax.Array) -> jax.Array:
        rows = jnp.arange(6)
        return jnp.where(rows[:, None] >= rows[None, :], x + jnp.zeros((6, 6)), -jnp.inf)

    graph = from_jax(mask, _shape(6, 6))
    # The mask is one weight of 36 bits; zeros and infinity are literals in the kernels.
    assert _types(graph) == ["Add", "Where"]
    assert list(_sources(graph, WEIGHT).values()) == [36]
    assert _reads(graph, "add") == {"x": 36}


def test_a_tied_embedding_is_one_weight() -> None:
    def tied(params: dict[str, jax.Array], ids: jax.Array) -> jax.Array:
        return params["e"].at[ids].get(mode="clip") @ params["e"].T

    graph = from_jax(tied, {"e": _shape(100, 8)}, _shape(5, dtype=jnp.int32))
    assert _sources(graph, WEIGHT) == {"params['e']": 800}
    # The look-up touches 5 rows of 8, the output layer all 800 elements.
    assert _reads(graph, "gather")["params['e']"] == 40
    assert _reads(graph, "dot_general")["params['e']"] == 800


def test_dead_code_is_dropped() -> None:
    def wasteful(x: jax.Array) -> jax.Array:
        jnp.sin(x) @ x
        jax.debug.print("{}", x)
        return jnp.cos(x)

    assert _types(from_jax(wasteful, _shape(4))) == ["Cos"]


def test_calls_are_inlined() -> None:
    def call(x: jax.Array) -> jax.Array:
        with jax.named_scope("outer"):
            y = jax.jit(lambda v: jnp.tanh(v))(x)
        return jax.checkpoint(lambda v: jnp.sin(v))(jax.nn.silu(y))

    graph = from_jax(call, _shape(4))
    assert graph.op_names == ("outer/tanh", "logistic", "mul", "sin")
    assert _types(graph) == ["Tanh", "Sigmoid", "Mul", "Sin"]


def test_a_linear_solve_costs_its_factorisation() -> None:
    graph = from_jax(jnp.linalg.solve, _shape(6, 6), _shape(6, 2))
    flops = dict(zip(graph.op_types, graph.op_flops.tolist(), strict=True))
    # LU takes 2/3 · 6³, each of the two triangular solves 6² for both right-hand sides.
    assert flops["lu"] == pytest.approx(144.0)
    assert flops["triangular_solve"] == 72.0
    assert graph.op_types.count("triangular_solve") == 2


def test_gradients_import() -> None:
    def loss(w: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(x @ w["a"]) ** 2)

    graph = from_jax(jax.grad(loss), {"a": _shape(3, 2)}, _shape(4, 3))
    # Forward x·a and backward xᵀ·g, each 2 · 4·3·2.
    assert _matrix_flops(graph) == 96.0


def _lstm(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """x [T, I], hidden size 4."""

    def step(state: tuple[jax.Array, jax.Array], row: jax.Array) -> Any:
        h, c = state
        i, f, g, o = jnp.split(row @ params["w"] + h @ params["u"], 4)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    return jax.lax.scan(step, (jnp.zeros(4), jnp.zeros(4)), x)[1]


def test_an_lstm_by_scan_is_unrolled() -> None:
    graph = from_jax(_lstm, {"w": _shape(8, 16), "u": _shape(4, 16)}, _shape(3, 8))
    # 3 steps of 2 · 8·16; h·u is 2 · 4·16 in two of them, for the first h is known to be 0.
    assert _matrix_flops(graph) == 3 * 256.0 + 2 * 128.0
    # Each step reads its 8 elements of x and all of w.
    assert _reads(graph, "scan/1/dot_general") == {"params['w']": 128, "x": 8}
    assert graph.op_types[-1] == "Concat"
    assert graph.op_class[-1] == DATA_MOVEMENT
    assert sum(_reads(graph, graph.op_names[-1]).values()) == 12


def test_a_scan_over_stacked_layers_gives_each_its_own_weight() -> None:
    def layers(w: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda h, layer: (jnp.tanh(h @ layer), None), x, w["a"], reverse=True)[0]

    graph = from_jax(layers, {"a": _shape(2, 4, 4)}, _shape(3, 4))
    assert _sources(graph, WEIGHT) == {"w['a'][1]": 16, "w['a'][0]": 16}
    assert _reads(graph, "scan/1/dot_general") == {"w['a'][1]": 16, "x": 12}
    assert _types(graph) == ["MatMul", "Tanh", "MatMul", "Tanh"]


def test_a_scan_over_an_activation_slices_it() -> None:
    def cumulate(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda c, row: (c + row, None), jnp.ones(4), jnp.sin(x))[0]

    graph = from_jax(cumulate, _shape(2, 4))
    assert sorted(_types(graph)) == ["Add", "Add", "Sin", "Slice", "Slice"]
    assert _reads(graph, "scan/0/slice") == {"sin": 4}


def test_a_long_scan_is_refused_with_its_limit() -> None:
    def long(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 9, lambda _, v: v * v, x)

    with pytest.raises(ModelError, match=r"op 'scan': a loop of 9 steps .* max_scan_length=8"):
        from_jax(long, _shape(2), max_scan_length=8)
    assert from_jax(long, _shape(2), max_scan_length=9).num_ops == 9


@pytest.mark.parametrize(
    ("condition", "step", "steps"),
    [
        (lambda c: c[0] < 5, lambda c: (c[0] + 2, c[1] * 2), 3),  # 0, 2, 4
        (lambda c: c[0] <= 4, lambda c: (c[0] + 2, c[1] * 2), 3),
        (lambda c: c[0] > -3, lambda c: (c[0] - 1, c[1] * 2), 3),  # 0, -1, -2
    ],
)
def test_a_counted_while_is_unrolled(
    condition: Callable[..., Any], step: Callable[..., Any], steps: int
) -> None:
    graph = from_jax(lambda x: jax.lax.while_loop(condition, step, (0, x))[1], _shape(4))
    assert _types(graph) == ["Mul"] * steps


def test_a_branch_costs_its_dearest_arm() -> None:
    def branch(x: jax.Array, p: jax.Array) -> jax.Array:
        return jax.lax.cond(p, lambda v: v * 2, lambda v: jnp.tanh(v @ v), x)

    graph = from_jax(branch, _shape(3, 3), _shape(dtype=jnp.bool_))
    assert _types(graph) == ["Cast", "If"]
    # 2 · 3·3·3 for the product and 9 for tanh.
    assert graph.op_flops[1] == 63.0
    assert graph.op_class[1] == MATRIX
    assert _reads(graph, "cond") == {"x": 9, "convert_element_type": 1}


def test_a_branch_on_a_loop_counter_is_taken_at_import() -> None:
    def alternate(x: jax.Array) -> jax.Array:
        def step(i: jax.Array, v: jax.Array) -> jax.Array:
            return jax.lax.cond(i == 0, jnp.sin, jnp.cos, v)

        return jax.lax.fori_loop(0, 3, step, x)

    assert _types(from_jax(alternate, _shape(4))) == ["Sin", "Cos", "Cos"]


class _Mlp(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.up = nnx.Linear(8, 32, rngs=rngs)
        self.norm = nnx.LayerNorm(32, rngs=rngs)
        self.down = nnx.Linear(32, 4, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        with jax.named_scope("mlp"):
            return self.down(jax.nn.gelu(self.norm(self.up(x))))


def test_a_flax_module_closed_over_or_as_state() -> None:
    model = _Mlp(nnx.Rngs(0))
    definition, state = nnx.split(model)
    closed = from_jax(model, _shape(2, 8))
    split = from_jax(lambda s, x: nnx.merge(definition, s)(x), state, _shape(2, 8))
    for graph in (closed, split):
        # 2·2·8·32 + 2·2·32·4
        assert _matrix_flops(graph) == 1536.0
        # kernels 256 + 128, biases 32 + 4, scale and shift 32 + 32
        assert sorted(_sources(graph, WEIGHT).values()) == [4, 32, 32, 32, 128, 256]
        assert graph.op_names[0] == "mlp/dot_general"
    # Flax modules are containers of their arrays from 0.11 on; before, the paths are not known.
    if not jax.tree_util.all_leaves([model]):
        assert any("up" in name for name in _sources(closed, WEIGHT))
    np.testing.assert_array_equal(closed.op_flops, split.op_flops)


def _xla_flops(fn: Callable[..., Any], *args: Any) -> float:
    return float(jax.jit(fn).lower(*args).compile().cost_analysis()["flops"])


def test_conv_net_against_xla() -> None:
    def net(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        for w in (p["a"], p["b"]):
            # VALID: XLA does not count the products with padding, the table counts dense.
            x = jax.lax.conv_general_dilated(
                x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = jax.nn.relu(x)
        return x.mean((1, 2)) @ p["d"]

    args = {"a": _shape(3, 3, 3, 16), "b": _shape(3, 3, 16, 32), "d": _shape(32, 10)}, _shape(1, 16, 16, 3)
    graph = from_jax(net, *args)
    # 14·14·16 outputs of 27, 12·12·32 of 144, 32·10 in the end.
    assert _matrix_flops(graph) == 2.0 * (3136 * 27 + 4608 * 144 + 320)
    assert graph.op_flops.sum() == pytest.approx(_xla_flops(net, *args), rel=0.05)


def _attention_block(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Pre-norm block of width 64 with 4 heads."""

    def norm(v: jax.Array, scale: jax.Array) -> jax.Array:
        centred = v - v.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale

    batch, length, width = x.shape
    q, k, v = (
        part.reshape(batch, length, 4, width // 4) for part in jnp.split(norm(x, p["s"]) @ p["qkv"], 3, -1)
    )
    scores = jax.nn.softmax(jnp.einsum("blhd,bmhd->bhlm", q, k) / 4.0)
    mixed = jnp.einsum("bhlm,bmhd->blhd", scores, v).reshape(batch, length, width)
    x = x + mixed @ p["o"]
    return x + jax.nn.gelu(norm(x, p["t"]) @ p["up"]) @ p["down"]


def test_transformer_block_against_xla() -> None:
    params = {
        "s": _shape(64), "t": _shape(64), "qkv": _shape(64, 192), "o": _shape(64, 64),
        "up": _shape(64, 256), "down": _shape(256, 64),
    }  # fmt: skip
    graph = from_jax(_attention_block, params, _shape(1, 32, 64))
    # Projections 2·32·64·(192 + 64 + 256 + 256), scores and mixing 2·2·32·32·64.
    assert _matrix_flops(graph) == 2.0 * 32 * 64 * 768 + 4.0 * 32 * 32 * 64
    # XLA counts exp, tanh and rsqrt apart from FLOPs and folds a few products.
    assert graph.op_flops.sum() == pytest.approx(
        _xla_flops(_attention_block, params, _shape(1, 32, 64)), rel=0.05
    )


@pytest.mark.parametrize(
    ("fn", "args", "words"),
    [
        (lambda x: jax.lax.while_loop(lambda c: c.sum() > 0, lambda c: c * 2, x), (_shape(3),), "op 'while'"),
        (lambda x: jax.pure_callback(lambda y: y, x, x), (_shape(3),), "op 'pure_callback'.*'pure_callback'"),
        (lambda x, y: x @ y, (_shape(3, 4), _shape(3)), "cannot be traced: dot_general requires"),
        (lambda x: x, ("text",), "cannot be traced"),
        (lambda x: x + 1, (_shape(3, dtype=jnp.float4_e2m1fn),), "argument 'x': unknown dtype 'float4"),
        (lambda x: x.astype(jnp.float4_e2m1fn), (_shape(3),), "op 'convert_element_type': unknown dtype"),
        (lambda x: x.nothing, (_shape(3),), "cannot be traced"),
        (lambda: 1 / 0, (), "cannot be traced: division by zero"),
    ],
)  # fmt: skip
def test_what_cannot_be_imported_is_named(fn: Callable[..., Any], args: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        from_jax(fn, *args)
    assert "\n" not in str(caught.value)
    assert " at 0x" not in str(caught.value)


def test_a_function_without_ops_is_refused() -> None:
    with pytest.raises(GraphError, match="has no ops"):
        from_jax(lambda x: x.reshape(2, 2), _shape(4))


_UNARY = [
    jnp.tanh,
    jnp.exp,
    lambda x: x.T,
    lambda x: x @ x,
    lambda x: x.sum(0, keepdims=True),
    jax.nn.softmax,
]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, len(_UNARY) - 1), min_size=1, max_size=5), st.integers(1, 4))
def test_any_composition_round_trips(functions: list[int], skip: int) -> None:
    def compose(x: jax.Array) -> jax.Array:
        history = [x]
        for f in functions:
            history.append(_UNARY[f](history[-1]) + history[-min(skip, len(history))])
        return history[-1]

    graph = from_jax(compose, _shape(4, 4))
    assert from_networkx(to_networkx(graph)).fingerprint == graph.fingerprint
    assert graph_from_dict(graph_to_dict(graph)).fingerprint == graph.fingerprint
    assert (graph.tensor_producer == NO_PRODUCER).sum() <= 1
    assert from_jax(compose, _shape(4, 4)).fingerprint == graph.fingerprint


def test_loading_the_importer_loads_no_jax() -> None:
    code = "import sys, go_opt as f; f.from_jax; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("parts", [2, 3])
def test_attention_by_heads(parts: int) -> None:
    """Queries, keys and values of flax are [tokens, heads, columns], and never turned."""
    module = nnx.MultiHeadAttention(num_heads=6, in_features=24, decode=False, rngs=nnx.Rngs(0))
    graph = from_jax(lambda x: module(jnp.exp(x)), _shape(1, 5, 24))
    heads = heads_of(graph)
    number, behind = next(heads[op] for op in heads if graph.op_types[graph.op_index[op]] == "MatMul")
    assert (number, sorted(behind.values())) == (6, [4, 4, 25])
    (block,) = blocks_of(graph)
    assert len(block) == len(heads) + 7, "products and biases of queries, keys, values; the last product"
    splits = tuple(splits_of_blocks(graph, [block], parts))
    assert list(broken_splits(graph, split_graph(graph, splits), splits)) == []
    text = jax.jit(lambda x: module(jnp.exp(x))).lower(_shape(1, 5, 24)).as_text()
    assert heads_of(from_stablehlo(text))
