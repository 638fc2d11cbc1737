"""Splits by the inner dimension, alone and behind columns, by hand and rechecked on random blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt import from_onnx
from go_opt.env import cost_tables
from go_opt.env.copies.columns import inner_of
from go_opt.env.copies.splits import split_graph
from go_opt.errors import PlanError
from go_opt.model.axes import kept_heads
from go_opt.model.graph import Graph
from go_opt.model.plan import Split
from go_opt.search.splits.inner_ways import blocks_of, is_open, splits_of_blocks
from go_opt.solver.verify.splits import broken_splits
from tests.env.split_mutants import with_a_wrong_number
from tests.shaped import ShapedBuilder
from tests.strategies import examples, seeds, small_mcm
from tests.transformers import encoder

BETWEEN = ("first", "bias", "gelu", "scaled")


def feed_forward(rows: int, inner: int, terms: int, columns: int, *, gates: int = 1) -> Graph:
    """A norm, products of ``terms`` columns that are multiplied, and a Gemm with a bias."""
    b = ShapedBuilder("feed forward")
    b.add_tensor("x", (rows, inner), "float32", "input")
    b.add_tensor("half", (), "float32", "weight")
    b.add_tensor("v", (terms, columns), "float32", "weight")
    b.add_tensor("c", (columns,), "float32", "weight")

    def op(name: str, op_type: str, flops: int, reads: Sequence[str], size: tuple[int, int]) -> None:
        kind = "matrix" if op_type in ("MatMul", "Gemm") else "vector"
        b.add_op(
            name, op_type, kind, flops=float(flops), dtype="float32", reads=[(read, None) for read in reads],
            writes=[(f"{name}_t", size, "float32")],
        )  # fmt: skip

    op("norm", "LayerNormalization", 8 * rows * inner, ["x"], (rows, inner))
    for name, scale in (("first", "f"), ("gate", "g"))[:gates]:
        b.add_tensor(f"w{scale}", (inner, terms), "float32", "weight")
        op(name, "MatMul", 2 * rows * inner * terms, ["norm_t", f"w{scale}"], (rows, terms))
    b.add_tensor("bias_w", (terms,), "float32", "weight")
    op("bias", "Add", rows * terms, ["first_t", "bias_w"], (rows, terms))
    op("gelu", "Gelu", 5 * rows * terms, ["bias_t"], (rows, terms))
    op("scaled", "Mul", rows * terms, ["gelu_t", "gate_t" if gates > 1 else "half"], (rows, terms))
    op("last", "Gemm", (2 * terms + 1) * rows * columns, ["scaled_t", "v", "c"], (rows, columns))
    op("sum", "Relu", rows * columns, ["last_t"], (rows, columns))
    b.mark_output("sum_t")
    return b.build()


def in_parts(parts: int, *, gates: int = 1) -> tuple[Split, ...]:
    names = BETWEEN if gates == 1 else (*BETWEEN, "gate")
    return (*(Split(name, "columns", parts, joined=False) for name in names), Split("last", "inner", parts))


def test_a_block_by_hand() -> None:
    """4 rows; 6 terms in parts of 2: each has 2 of 6 rows of V, and the first one the bias."""
    graph = feed_forward(4, 3, 6, 5)
    split = split_graph(graph, in_parts(3))
    added = [name for name in split.op_names if name.startswith("last")]
    assert added == ["last/part 1 of 3", "last/part 2 of 3", "last/sum 2 of 3", "last/part 3 of 3", "last"]
    assert [split.op_types[split.op_index[name]] for name in added] == ["Gemm", "Gemm", "Add", "Gemm", "Add"]
    # A part multiplies 4 x 2 by 2 x 5; a sum adds 4 x 5 elements.
    assert [split.op_flops[split.op_index[name]] for name in added] == [100, 80, 20, 80, 20]
    sizes = dict(zip(split.tensor_names, split.tensor_elements.tolist(), strict=True))
    assert (sizes["v/inner 2 of 3"], sizes["bias_w/part 2 of 3"], sizes["gelu_t/part 1 of 3"]) == (10, 2, 8)
    assert (sizes["last_t/part 1 of 3"], sizes["last_t/sum 2 of 3"]) == (20, 20)
    assert {"v", "wf", "bias_w"}.isdisjoint(split.tensor_names)
    assert {"half", "c"} <= sizes.keys()
    assert list(broken_splits(graph, split, in_parts(3))) == []
    seconds = cost_tables(split, small_mcm()).kernel_floor_s()[0]
    # 100 FLOPs of a product and 20 of a sum, beside 1 us overhead each.
    costs = [float(seconds[split.op_index[name]]) for name in ("last/part 1 of 3", "last")]
    assert costs == pytest.approx([1.1e-6, 1.2e-6])


def test_alone_the_parts_take_slices_of_what_is_whole() -> None:
    graph = feed_forward(4, 3, 6, 5)
    splits = (Split("last", "inner", 2),)
    split = split_graph(graph, splits)
    taken = split.op_index["scaled_t/inner 1 of 2"]
    assert (split.op_types[taken], split.op_flops[taken]) == ("Slice", 0)
    assert split.tensor_elements[split.tensor_index["scaled_t/inner 1 of 2"]] == 12
    assert list(broken_splits(graph, split, splits)) == []


def test_without_rules_nothing_is_split() -> None:
    graph = replace(feed_forward(1, 3, 6, 5), op_rules=())
    for one in in_parts(2):
        with pytest.raises(PlanError, match="cannot be split"):
            split_graph(graph, (one,))


@pytest.mark.parametrize(
    ("splits", "sentence"),
    [
        ((Split("first", "inner", 2),), "splits: op 'first' has 3 terms for 4 parts."),
        ((Split("norm", "inner", 2),), "splits: op 'norm' cannot be split by the inner dimension."),
        ((Split("last", "inner", 2, False),), "splits: op 'last' has partial results, which must be joined."),
        ((Split("gelu", "columns", 2),), "splits: op 'gelu' cannot be split by columns."),
        (in_parts(2)[:-1], "splits: op 'scaled' is read by others than the host"),
        ((*in_parts(2)[:-1], Split("last", "inner", 3)), "splits: op 'scaled' is read by others"),
        ((*in_parts(2)[:-1], Split("last", "columns", 2)), "splits: op 'scaled' is read by others"),
        ((*in_parts(2)[:1], *in_parts(3)[1:]), "splits: op 'bias' cannot be split by columns."),
        (in_parts(2)[2:], "splits: op 'gelu' cannot be split by columns."),
    ],
)
def test_refused(splits: tuple[Split, ...], sentence: str) -> None:
    given = (replace(splits[0], parts=4), *splits[1:]) if "terms" in sentence else splits
    with pytest.raises(PlanError) as caught:
        split_graph(feed_forward(4, 3, 6, 5), given)
    assert str(caught.value).startswith(sentence)


def test_columns_that_may_be_rows_do_not_pass() -> None:
    """6 rows of 6 columns: a graph does not say which operand is on the left."""
    with pytest.raises(PlanError, match="'bias' cannot be split"):
        split_graph(feed_forward(6, 3, 6, 5), in_parts(2))


def test_an_input_of_the_model_is_not_divided() -> None:
    graph = feed_forward(4, 3, 6, 5)
    assert inner_of(graph, graph.op_index["last"]) is not None
    assert inner_of(graph, graph.op_index["norm"]) is None


@given(seed=seeds)
@settings(max_examples=examples(60), deadline=None)
def test_random_blocks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, inner, columns = (int(n) for n in rng.integers(1, 7, 3))
    terms, gates = int(rng.integers(max(7, inner + 1), 15)), int(rng.integers(1, 3))
    graph = feed_forward(rows, inner, terms, columns, gates=gates)
    parts = int(rng.integers(2, 6))
    splits = in_parts(parts, gates=gates) if rng.random() < 0.7 else (Split("last", "inner", parts),)
    if inner == 1 or columns == 1:  # a bias as large as the weight, or no columns
        return
    split = split_graph(graph, splits)
    assert list(broken_splits(graph, split, splits)) == []
    assert split.op_flops.sum() == pytest.approx(graph.op_flops.sum() + (parts - 1) * rows * columns)
    for array, mutant in with_a_wrong_number(rng, split):
        assert list(broken_splits(graph, mutant, splits)), f"{array} was not found out"
    for mutant in with_other_names(split, parts):
        assert list(broken_splits(graph, mutant, splits)), "other slices were not found out"


def attention(graph: Graph, parts: int) -> tuple[Split, ...]:
    (block, *_) = blocks_of(graph)
    return tuple(splits_of_blocks(graph, [block], parts))


def test_attention_by_heads_by_hand() -> None:
    """3 tokens, 4 heads of 2 in 2 parts: scores of 2 x 3 x 3, all of the mask, and half of what is summed."""
    graph = from_onnx(encoder(1, 3, 8, 4, causal=True, weights=False))
    splits = attention(graph, 2)
    assert {one.op[2:] for one in splits if one.kind == "heads"} == {
        "q_turn", "k_turn", "v_turn", "_scores", "_scaled", "_masked", "_softmax", "_context", "_back",
    }  # fmt: skip
    assert {one.op[2:] for one in splits if one.kind != "heads"} == {
        "q_product", "k_product", "v_product", "q_bias", "k_bias", "v_bias", "o_product",
    }  # fmt: skip
    split = split_graph(graph, splits)
    sizes = dict(zip(split.tensor_names, split.tensor_elements.tolist(), strict=True))
    assert [sizes[f"l0{name}/part 2 of 2"] for name in ("kt", "s", "fm", "c", "ct", "o_m")] == [
        12,
        18,
        18,
        12,
        12,
        24,
    ]
    assert (sizes["mask"], sizes["l0k_w/part 1 of 2"], sizes["l0o_w/inner 2 of 2"]) == (9, 32, 32)
    assert split.op_flops[split.op_index["l0_scores/part 1 of 2"]] == 2 * 2 * 3 * 3 * 2
    assert list(broken_splits(graph, split, splits)) == []
    three = from_onnx(encoder(1, 3, 9, 3, weights=False))  # no two parts of two heads
    assert [three.op_names[block[-1]] for block in blocks_of(three)] == ["l0d_product"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda one: replace(one, parts=4), "splits: op 'l0q_turn' cannot be split by heads."),
        (lambda one: one if one.op != "l0v_turn" else None, "splits: op 'l0_context' cannot be split by"),
        (lambda one: one if one.op != "l0_back" else None, "splits: op 'l0_context' is read by others"),
        (lambda one: replace(one, kind="heads"), "splits: op 'l0q_product' cannot be split by heads."),
    ],
)
def test_heads_refused(change: Callable[[Split], Split | None], sentence: str) -> None:
    graph = from_onnx(encoder(1, 3, 8, 4, weights=False))
    with pytest.raises(PlanError) as caught:
        split_graph(graph, tuple(found for one in attention(graph, 2) if (found := change(one))))
    assert str(caught.value).startswith(sentence)


@given(seed=seeds)
@settings(max_examples=examples(40), deadline=None)
def test_random_attention(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = int(rng.integers(2, 5))
    heads, of_head, tokens = parts * int(rng.integers(2, 4)), int(rng.integers(1, 4)), int(rng.integers(2, 8))
    model = encoder(1, tokens, heads * of_head, heads, causal=rng.random() < 0.5, weights=False)
    graph = from_onnx(model)
    if not any(is_open(graph, block, parts) for block in blocks_of(graph)[:1]):
        assert tokens % (heads * of_head) == 0 or of_head == 1, "only where columns may be rows"
        return
    splits = attention(graph, parts)
    split = split_graph(graph, splits)
    assert list(broken_splits(graph, split, splits)) == []
    for array, mutant in with_a_wrong_number(rng, split):
        assert list(broken_splits(graph, mutant, splits)), f"{array} was not found out"
    tensors = ("qt/part", "kt/part", "f/part", "a/part", "c/part", "ct/part", "o_w/inner", "v_w/part")
    for mutant in with_other_names(split, parts, [f"l0{name}" for name in tensors]):
        assert list(broken_splits(graph, mutant, splits)), "other slices were not found out"
    # Without what the graph says of an op, or with other heads, its parts are not what the whole op gives.
    for op in (graph.op_index[one.op] for one in splits if one.kind == "heads"):
        row = graph.op_rules[op]
        assert row is not None
        turned = row.rule._replace(results=(row.rule.results[0][::-1],))
        for other in (None, row._replace(rule=turned)):
            mutant = replace(graph, op_rules=(*graph.op_rules[:op], other, *graph.op_rules[op + 1 :]))
            if kept_heads(mutant).get(op) == kept_heads(graph)[op]:
                continue  # as many elements lie behind a head
            assert list(broken_splits(mutant, split, splits)), graph.op_names[op]


def with_other_names(
    split: Graph,
    parts: int,
    names: Sequence[str] = ("v/inner", "scaled_t/part", "scaled_t/inner", "gelu_t/part", "last_t/part"),
) -> list[Graph]:
    """Mutants in which the slices of two parts are exchanged: of V, and of what it multiplies."""
    mutants = []
    for name in names:
        first, second = (f"{name} {i} of {parts}" for i in (1, 2))
        if first in split.tensor_index:
            swap = {first: second, second: first}
            others = tuple(swap.get(tensor, tensor) for tensor in split.tensor_names)
            mutants.append(replace(split, tensor_names=others))
    return mutants
