"""Forms of GPU kernels and collectives: against a plain twin, by hand, growing, and in tables of costs."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from go_opt.env import cost_tables, load_target, target_names
from go_opt.env.gpu.figures import COLLECTIVES, Collective, KernelFigures, scaled_figures
from go_opt.env.gpu.forms import Attentions, GpuKernels, Products
from go_opt.env.kernels.numbering import kernel_seconds
from go_opt.frontends.onnx_frontend import from_onnx
from go_opt.kernels.tables import ATTENTION, PRODUCTS, KernelTable, predictor
from go_opt.model.graph import Graph
from tests.env.gpu_twin import compute_seconds, overlapped
from tests.env.test_monotone_costs import CASES, one_op
from tests.strategies import examples

H100 = KernelFigures(
    tiles_at_once=132,
    start_s=2.57e-6,
    matrix_share=8.555e14 / 989e12,
    memory_share=2.947e12 / 3.35e12,
    feed_bytes_per_s=3.276e13,
    step_s=8.252e-8,
    store_bytes_per_s=6.409e12,
    split_overhead_s=3.282e-6,
    prefill_overhead_s=12e-6,
    scores_per_s=4.6e12,
    prefill_block_s=0.1e-6,
    decode_overhead_s=8e-6,
    decode_block_s=2e-6,
    decode_split_s=1.5e-6,
)
PLAIN = GpuKernels(H100, 3.35e12)
CACHED = GpuKernels(replace(H100, cache_bytes=19e6, cache_bytes_per_s=8e12), 3.35e12)
FEW = GpuKernels(replace(H100, tiles_at_once=3, split_overhead_s=1e-3), 3.35e14)  # waves count
RATE = 989e12
SIZES = st.integers(1, 5000)


def products(b: float, m: float, k: float, n: float) -> Products:
    return Products(*(np.array([float(one)]) for one in (b, m, k, n, RATE, 2.0, 1.0)))


def product_s(kernels: GpuKernels, b: float, m: float, k: float, n: float) -> float:
    num_bytes = np.array([2.0 * b * (m * k + k * n + m * n)])
    return float(kernels.product_s(products(b, m, k, n), num_bytes)[0])


def attention(b: int, h: int, g: int, rows: int, keys: int, depth: int, causal: int) -> Attentions:
    return Attentions(*(np.array([float(one)]) for one in (b, h, g, rows, keys, depth, causal, RATE, 2.0)))


def twin_s(m: int, n: int, k: int, batch: int) -> float:
    traffic_s = 2 * batch * (m * k + k * n + m * n) / 2.947e12
    return overlapped(compute_seconds(H100, RATE, (batch, m, k, n)), traffic_s)


@given(m=SIZES, n=SIZES, k=SIZES, batch=st.integers(1, 40))
def test_products_are_those_of_the_twin(m: int, n: int, k: int, batch: int) -> None:
    assert product_s(PLAIN, batch, m, k, n) == pytest.approx(twin_s(m, n, k, batch))


def test_products_by_hand() -> None:
    """The figures of the fit to an H100: [M, 1024] x [1024, 1024] in microseconds, no step at whole tiles."""
    seconds = [1e6 * (2.57e-6 + product_s(PLAIN, 1, m, 1024, 1024)) for m in (1, 128, 512, 1024, 2048, 4096)]
    assert seconds == pytest.approx([4.0, 4.1, 4.5, 6.0, 9.1, 15.3], abs=0.06)


@given(data=st.data(), kernels=st.sampled_from([PLAIN, CACHED]))
def test_a_larger_product_takes_no_less(data: st.DataObject, kernels: GpuKernels) -> None:
    sizes = [data.draw(st.integers(1, 70_000)) for _ in range(4)]
    place, more = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 300))
    grown = [size + more * (i == place) for i, size in enumerate(sizes)]
    assert product_s(kernels, *sizes) <= product_s(kernels, *grown) * (1 + 1e-12)


@given(data=st.data(), causal=st.booleans())
def test_a_larger_attention_takes_no_less(data: st.DataObject, causal: bool) -> None:
    b, g, share, rows, earlier, depth = (
        data.draw(st.integers(1, most)) for most in (64, 16, 8, 4096, 9000, 256)
    )
    cached = earlier if data.draw(st.booleans()) else 0
    place = data.draw(st.integers(0, 5))

    def seconds(b: int, g: int, share: int, rows: int, cached: int, depth: int) -> float:
        return float(PLAIN.attention_s(attention(b, g * share, g, rows, rows + cached, depth, causal))[0])

    sizes = [b, g, share, rows, cached, depth]
    grown = [size + (i == place) * data.draw(st.integers(1, 130)) for i, size in enumerate(sizes)]
    assert seconds(*sizes) <= seconds(*grown) * (1 + 1e-12)


@given(elements=st.integers(1, 2**30), more=st.integers(1, 2**20), group=st.integers(2, 64))
def test_a_larger_collective_takes_no_less(elements: int, more: int, group: int) -> None:
    for op in COLLECTIVES:
        one = Collective(op, 5e-6, 4e11, 1e-6, 6e11)
        numbers = np.array([elements, elements + more, elements + more]) * 2.0
        seconds = one.seconds(numbers, np.array([group, group, group + 1.0]))
        assert (np.diff(seconds) >= 0).all()


def test_a_collective_by_hand() -> None:
    """A small one takes its latency, a large one its rate: 2 * 3 / 4 of 4 GB at 300 and 4 GB at 400 GB/s."""
    one = Collective("all_reduce", 5e-6, 3e11, 1e-6, 4e11)
    small, large = one.seconds(np.array([2.0, 4e9]), np.array([4.0, 4.0]))
    assert small == pytest.approx(8e-6, rel=0.01)
    assert large == pytest.approx(4e9 * (1.5 / 3e11 + 1 / 4e11), rel=0.1)


@given(data=st.data(), kernels=st.sampled_from([PLAIN, CACHED, FEW]))
@settings(max_examples=examples(300), deadline=None)
def test_parts_take_at_least_the_floor(data: st.DataObject, kernels: GpuKernels) -> None:
    """Bounds use no rate above that of any parts: a grid of up to three along each dimension."""
    most = data.draw(st.sampled_from([40, 400, 4000]))
    sizes = [data.draw(st.integers(1, most // (10 if i == 0 else 1))) for i in range(4)]
    pieces = []
    for size in sizes:
        cuts = data.draw(st.lists(st.integers(1, max(1, size - 1)), max_size=2, unique=True))
        ends = [0, *sorted(cut for cut in cuts if cut < size), size]
        pieces.append([stop - start for start, stop in itertools.pairwise(ends)])
    b, m, k, n = sizes
    num_bytes = np.array([2.0 * b * (m * k + k * n + m * n)])
    floor, rated = (
        float(kernels.product_parts_s(products(b, m, k, n), num_bytes, in_waves=in_waves)[0])
        for in_waves in (True, False)
    )
    parts_s = sum(product_s(kernels, *part) for part in itertools.product(*pieces))
    assert rated <= floor * (1 + 1e-12)
    assert floor <= parts_s * (1 + 1e-9)


def test_the_floor_of_parts_is_reached() -> None:
    """On three processors: by 4 tiles in two waves, 16 rows of 64 columns in one; rates alone say less."""
    nothing = np.zeros(1)
    for sizes, share in (((1, 512, 4096, 256), 0.67), ((1, 16, 4096, 64), 0.34), ((1, 700, 4096, 300), 0.72)):
        of, whole_s = products(*sizes), product_s(FEW, *sizes)
        assert FEW.product_parts_s(of, nothing)[0] == pytest.approx(whole_s, rel=2e-3)
        assert FEW.product_parts_s(of, nothing, in_waves=False)[0] < share * whole_s


def test_attention_at_rates_of_its_own() -> None:
    """As in times of the reached rates of products, and of the peak without a ratio."""
    long = attention(8, 32, 32, 8192, 8192, 128, 0)
    plain_s, rated_s, slow_s = (
        float(
            GpuKernels(replace(H100, scores_per_s=1e30, attention_matrix_ratio=ratio), 1e30).attention_s(
                long
            )[0]
        )
        for ratio in (0.0, 1.0 / H100.matrix_share, 0.5 / H100.matrix_share)
    )
    assert plain_s == pytest.approx(rated_s)
    assert slow_s == pytest.approx(2.0 * plain_s, rel=0.01)
    step = attention(64, 8, 8, 1, 8192, 128, 1)
    fast = GpuKernels(replace(H100, attention_memory_ratio=2.0), 3.35e12)
    flops = float(PLAIN.attention_s(step)[0]), float(fast.attention_s(step)[0])
    assert 1.7 < flops[0] / flops[1] < 2.0


@given(data=st.data(), causal=st.booleans())
def test_parts_of_attention_take_at_least_the_floor(data: st.DataObject, causal: bool) -> None:
    sizes = [data.draw(st.integers(2, most)) for most in (64, 16, 4096)]  # samples, groups, rows
    cached, place = data.draw(st.integers(0, 9000)), data.draw(st.integers(0, 1 if causal else 2))
    first = data.draw(st.integers(1, sizes[place] - 1))

    def of(b: int, g: int, rows: int) -> Attentions:
        return attention(b, 4 * g, g, rows, sizes[2] + cached, 64, causal)

    parts = [
        [p if i == place else size for i, size in enumerate(sizes)] for p in (first, sizes[place] - first)
    ]
    floor = float(PLAIN.attention_parts_s(of(*sizes))[0])
    assert floor <= sum(float(PLAIN.attention_s(of(*part))[0]) for part in parts) * (1 + 1e-9)


def test_an_unmeasured_gpu_is_an_h100_scaled_by_its_sheet() -> None:
    half = scaled_figures(494.5e12, 1.675e12, 66)
    assert half.feed_bytes_per_s == pytest.approx(1.533e13, rel=0.01)
    assert (half.start_s, half.matrix_share, half.tiles_at_once) == (2.6e-6, 0.88, 66)


@pytest.mark.parametrize(("m", "k", "n"), [(1, 4096, 4096), (64, 1000, 300), (4096, 4096, 4096)])
def test_tables_of_costs_have_the_same_seconds(m: int, k: int, n: int) -> None:
    """A product as the only op of a graph, and as a row of a table; a captured graph's launch is hidden."""
    target = load_target("gpu-2-graph")
    graph = one_op(CASES["linear"], {"m": m, "k": k, "n": n})
    table = KernelTable("", PRODUCTS, np.array([[m, n, k]], np.float64), None)
    assert cost_tables(graph, target).kernel_floor_s()[0, 0] == pytest.approx(
        predictor(target).seconds(table)[0]
    )
    launched = cost_tables(graph, load_target("gpu-2"))  # a launch takes longer than the shortest kernel
    assert launched.kernel_overhead_s.tolist() == [4e-6]
    assert launched.op_s == pytest.approx(cost_tables(graph, target).op_s)


def attention_graph(
    heads: int, groups: int, rows: int, keys: int, *, batch: int = 1, past: int = 0, causal: int = 0
) -> Graph:
    """One ONNX ``Attention`` of heads of 64, with cached keys and values that it extends."""
    reads, writes = ["q", "k", "v"], ["y"]
    shapes = {"q": [batch, heads, rows, 64], "k": [batch, groups, keys, 64], "v": [batch, groups, keys, 64]}
    made = {"y": [batch, heads, rows, 64]}
    if past:
        reads, writes = [*reads, "", "pk", "pv"], ["y", "nk", "nv"]
        shapes |= {name: [batch, groups, past, 64] for name in ("pk", "pv")}
        made |= {name: [batch, groups, past + keys, 64] for name in ("nk", "nv")}
    one = helper.make_node("Attention", reads, writes, is_causal=causal)
    float32 = TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info(name, float32, shape) for name, shape in shapes.items()]
    outputs = [helper.make_tensor_value_info(name, float32, shape) for name, shape in made.items()]
    graph = helper.make_graph([one], "attention", inputs, outputs)
    return from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)]))


@pytest.mark.parametrize(
    ("graph", "row"),
    [
        (attention_graph(16, 16, 512, 512, causal=1), (1, 512, 0, 16, 16, 64)),
        (attention_graph(16, 4, 512, 512, batch=3, causal=1), (3, 512, 0, 16, 4, 64)),
        (attention_graph(16, 4, 1, 1, batch=8, past=2000), (8, 1, 2000, 16, 4, 64)),
        (attention_graph(16, 4, 1, 2001, batch=8), (8, 1, 2000, 16, 4, 64)),
        (attention_graph(16, 4, 100, 100, past=300, causal=1), (1, 100, 300, 16, 4, 64)),
    ],
)
def test_attention_is_read_from_its_rule(graph: Graph, row: tuple[int, ...]) -> None:
    """Heads, groups of heads, rows, cached keys and causality; as a row of a table of attention."""
    target = load_target("gpu-2-graph")
    expected = predictor(target).seconds(KernelTable("", ATTENTION, np.array([row], np.float64), None))
    assert cost_tables(graph, target).kernel_floor_s()[0] == pytest.approx(expected)


@pytest.mark.parametrize("name", target_names())
def test_one_head_costs_no_more_than_sixteen(name: str) -> None:
    heads = [
        cost_tables(attention_graph(h, h, 512, 512), load_target(name)).kernel_floor_s()[0, 0]
        for h in (1, 2, 16)
    ]
    assert heads == sorted(heads)


def test_causal_attention_takes_less() -> None:
    target = load_target("h100-sxm-1")
    seconds = [cost_tables(attention_graph(16, 16, 8192, 8192, causal=c), target).op_s[0, 0] for c in (0, 1)]
    assert 0.5 < seconds[1] / seconds[0] < 0.65


def test_attention_as_one_kernel_of_three_ops_takes_about_as_long_as_the_op() -> None:
    """Without the scores between its products, which only kernels of their own write and read."""
    target = load_target("h100-sxm-1")
    shape = [8, 16, 2048, 64]
    nodes = [
        *(helper.make_node("Relu", [f"x{name}"], [name]) for name in ("q", "kt", "v")),
        helper.make_node("MatMul", ["q", "kt"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"]),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    made = {"xq": shape, "xkt": [8, 16, 64, 2048], "xv": shape}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, one) for name, one in made.items()]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    model = helper.make_graph(nodes, "attention", inputs, [output])
    graph = from_onnx(helper.make_model(model, opset_imports=[helper.make_opsetid("", 21)]))
    ops = [graph.op_types.index("Softmax"), *(i for i, one in enumerate(graph.op_types) if one == "MatMul")]
    kernel_of = np.arange(graph.num_ops, dtype=np.int32)
    apart = kernel_seconds(cost_tables(graph, target), kernel_of)[0][ops].sum()
    kernel_of[ops] = min(ops)
    fused = kernel_seconds(cost_tables(graph, target), kernel_of)[0][min(ops)]
    whole = cost_tables(attention_graph(16, 16, 2048, 2048, batch=8), target).kernel_floor_s()[0, 0]
    assert whole / 3 < fused < whole * 1.2
    assert apart > 3 * fused
