"""Training steps on several chips: shares of the batch, copies of the weights, each gradient summed once."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.env.copies.parts import SplitGraph
from go_opt.env.copies.splits import split_graph, split_graph_and_parts
from go_opt.errors import PlanError
from go_opt.model.graph import Graph
from go_opt.model.plan import Split
from go_opt.search.replicas.ways import replicated_way
from go_opt.solver.verify.splits import broken_splits
from tests.env.split_mutants import mutants
from tests.env.split_oracle import split_outputs, whole_values
from tests.env.test_splits import checked
from tests.shaped import ShapedBuilder
from tests.strategies import examples, seeds


def step(rows: int = 4, widths: tuple[int, ...] = (3, 2), *, momentum: bool = False) -> Graph:
    """Products, their gradients, and the update of each weight, maybe by a moment."""
    b, last = ShapedBuilder("step", precision="as-is"), len(widths) - 2
    sized: dict[str, tuple[int, ...]] = {"x": (rows, widths[0])}
    b.add_tensor("x", sized["x"], "float32", "input")

    def op(name: str, op_type: str, reads: str, shape: tuple[int, ...], **attributes: object) -> None:
        is_matrix = op_type == "MatMul"
        terms = 2 * sized[reads.split()[0]][1] if is_matrix else 1
        sized[name] = shape
        b.add_op(
            name, op_type, "matrix" if is_matrix else "vector", flops=float(terms * np.prod(shape)),
            dtype="float32", reads=[(read, None) for read in reads.split()],
            writes=[(name, shape, "float32")], attributes=attributes,
        )  # fmt: skip

    for i, (inner, outer) in enumerate(pairwise(widths)):
        for name in (f"w{i}", f"m{i}")[: 1 + momentum]:
            sized[name] = inner, outer
            b.add_tensor(name, sized[name], "float32", "weight")
        op(f"h{i}", "MatMul", f"{'x' if i == 0 else f'h{i - 1}'} w{i}", (rows, outer))
    op("loss", "ReduceSum", f"h{last}", (), keepdims=0)
    gradient = f"h{last}"
    for i in range(last, -1, -1):
        inner, outer = widths[i], widths[i + 1]
        op(f"t{i}", "Transpose", "x" if i == 0 else f"h{i - 1}", (inner, rows), perm=[1, 0])
        op(f"g{i}", "MatMul", f"t{i} {gradient}", (inner, outer))
        if momentum:
            op(f"moment{i}", "Add", f"m{i} g{i}", (inner, outer))
            b.add_state(f"m{i}", f"moment{i}", "model")
        op(f"update{i}", "Sub", f"w{i} {'moment' if momentum else 'g'}{i}", (inner, outer))
        b.add_state(f"w{i}", f"update{i}", "model")
        if i:
            op(f"wt{i}", "Transpose", f"w{i}", (outer, inner), perm=[1, 0])
            op(f"d{i}", "MatMul", f"{gradient} wt{i}", (rows, inner))
            gradient = f"d{i}"
    b.mark_output("loss")
    return b.build()


def reads(graph: Graph, op: str) -> set[str]:
    return {graph.tensor_names[k] for k, touched in graph.reads_of(graph.op_index[op]) if touched}


def test_two_replicas_by_hand() -> None:
    """h = x w, g = x^T h, w - g: each chip has two of the four rows, and a copy of w."""
    graph = checked(whole := step(), *replicated_way(whole, 2))
    first, second = (f"x/elements {6 * i} to {6 * i + 6} of 12" for i in range(2))
    assert reads(graph, "h0/part 1 of 2") == {first, "w0"}
    assert reads(graph, "h0/part 2 of 2") == {second, "w0/copy 2 of 2"}
    assert reads(graph, "g0/sent 2 of 2") == {"g0/part 2 of 2"}
    bucket = "AllReduce of bucket 1/copy 2 of 2"  # of the loss and the gradient
    handed = {f"{name}/sent {i} of 2" for name in ("loss", "g0") for i in (1, 2)}
    assert reads(graph, bucket) == handed
    written = {graph.tensor_names[k] for k in graph.outputs_of(graph.op_index[bucket])}
    assert written == {"loss/copy 2 of 2", "g0/copy 2 of 2"}
    assert reads(graph, "update0") == {"w0", "g0"}
    assert reads(graph, "update0/copy 2 of 2") == {"w0/copy 2 of 2", "g0/copy 2 of 2"}
    states = [(graph.tensor_names[one.read], graph.tensor_names[one.next]) for one in graph.states]
    assert states == [("w0", "update0"), ("w0/copy 2 of 2", "update0/copy 2 of 2")]
    assert graph.op_flops[graph.op_index["h0/part 1 of 2"]] == 2 * 2 * 3 * 2
    assert graph.op_flops[graph.op_index["update0/copy 2 of 2"]] == 6


def test_two_replicas_that_share_the_update_by_hand() -> None:
    """Each chip sums its half of the gradient and has half of the moment; both get the new weights."""
    whole = step(widths=(4, 2), momentum=True)
    graph = checked(whole, *replicated_way(whole, 2, shares_updates=True))
    first, second = (f"/elements {4 * i} to {4 * i + 4} of 8" for i in range(2))
    assert reads(graph, "ReduceScatter of bucket 2") == {"g0/sent 1 of 2", "g0/sent 2 of 2"}
    assert reads(graph, "moment0/part 2 of 2") == {f"m0{second}", f"g0{second}"}
    touched = {graph.tensor_names[k]: n for k, n in graph.reads_of(graph.op_index["update0/part 2 of 2"])}
    assert touched.pop("w0/copy 2 of 2") == 4  # its half, read where it lies
    assert touched == {"moment0/part 2 of 2": 4}
    assert reads(graph, "AllGather of bucket 3/copy 2 of 2") == {"update0/sent 1 of 2", "update0/sent 2 of 2"}
    states = {(graph.tensor_names[one.read], graph.tensor_names[one.next]) for one in graph.states}
    assert states == {
        ("w0", "update0"),
        ("w0/copy 2 of 2", "update0/copy 2 of 2"),
        (f"m0{first}", "moment0/part 1 of 2"),
        (f"m0{second}", "moment0/part 2 of 2"),
    }
    assert graph.op_flops[graph.op_index["update0/part 2 of 2"]] == 4
    assert graph.op_types.count("AllReduce") == 2  # of the loss alone


def test_an_update_that_cannot_be_shared() -> None:
    """Three rows and five columns are not two equal slices."""
    assert replicated_way(step(widths=(3, 5)), 2, shares_updates=True) == ()
    split = {one.op: one.factor for one in replicated_way(step(widths=(3, 2)), 2, shares_updates=True)}
    assert (split["update0"], split["g0"]) == ("d1", "k")  # columns


@settings(max_examples=examples(12))
@given(seed=seeds)
def test_replicas_compute_the_step(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = int(rng.integers(2, 5))
    widths = tuple(rng.integers(2, 5, size=int(rng.integers(2, 4))).tolist())
    graph = step(parts * int(rng.integers(2, 4)), widths, momentum=bool(rng.random() < 0.5))
    checked(graph, *replicated_way(graph, parts))
    checked(graph, *replicated_way(graph, parts, shares_updates=True))


def test_a_gradient_that_is_not_summed_over_all_replicas_is_found() -> None:
    """Updates from the partial result of one chip, from the sum of fewer, or from one term twice."""
    whole = step(6, (3, 2))
    way = replicated_way(whole, 3)
    split = split_graph_and_parts(whole, way)
    for op, wrong in (
        ("update0/copy 2 of 3", {"g0/copy 2 of 3": "g0/part 2 of 3"}),
        ("update0", {"g0": "g0/sent 1 of 3"}),
        ("AllReduce of bucket 1/copy 3 of 3", {"g0/sent 1 of 3": "g0/sent 2 of 3"}),
        ("AllReduce of bucket 1/copy 3 of 3", {"g0/sent 1 of 3": "loss/sent 1 of 3"}),
        ("g0/sent 1 of 3", {"g0/part 1 of 3": "g0/part 2 of 3"}),
        ("h0/part 1 of 3", {"x/elements 0 to 6 of 18": "x/elements 6 to 12 of 18"}),
    ):
        graph = _with_reads(split, op, wrong)
        assert list(broken_splits(whole, graph, way)), (op, wrong)


def test_a_slice_that_no_chip_updates_is_found() -> None:
    """Sums of other gradients, slices of other chips, an update from one term, weights without a slice."""
    whole = step(4, (4, 2), momentum=True)
    way = replicated_way(whole, 2, shares_updates=True)
    split = split_graph_and_parts(whole, way)
    first, second = (f"g0/elements {4 * i} to {4 * i + 4} of 8" for i in range(2))
    for op, wrong in (
        ("moment0/part 2 of 2", {second: first}),
        ("moment0/part 2 of 2", {second: "g0/part 2 of 2"}),
        ("update0/part 2 of 2", {"moment0/part 2 of 2": "moment0/part 1 of 2"}),
        ("ReduceScatter of bucket 2", {"g0/sent 2 of 2": "g0/sent 1 of 2"}),
        ("AllGather of bucket 3", {"update0/sent 2 of 2": "update0/sent 1 of 2"}),
        ("update0/sent 2 of 2", {"update0/part 2 of 2": "update0/part 1 of 2"}),
    ):
        graph = _with_reads(split, op, wrong)
        assert list(broken_splits(whole, graph, way)), (op, wrong)


def _with_reads(split: SplitGraph, op: str, instead: dict[str, str]) -> Graph:
    from tests.env.split_mutants import Editable

    changed = Editable(split)
    for row in changed.ops:
        if row["name"] == op:
            row["reads"] = list({instead.get(name, name): size for name, size in row["reads"]}.items())
    graph = changed.built()
    assert graph is not None
    return graph


@settings(max_examples=examples(10))
@given(seed=seeds)
def test_faults_are_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = step(4, (3, 2, 2), momentum=bool(rng.random() < 0.5))
    way = replicated_way(graph, 2, shares_updates=bool(rng.random() < 0.5))
    split = split_graph_and_parts(graph, way)
    for name, mutant in mutants(rng, split):
        assert list(broken_splits(graph, mutant, way)), name


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ((Split("h0", "i", 2),), "op 'h0' divides the state 'w0', but op 'update0'"),
        ((Split("h0", "i", 2), Split("update0", "", 4)), "op 'h0' divides the state 'w0'"),
        ((Split("update0", "", 1),), "op 'update0' has 2 to 1024 copies"),
        ((Split("update0", "", 2, collective=True),), "op 'update0' has 2 to 1024 copies"),
        ((Split("update0", "", 2), Split("update0", "d0", 3)), "op 'update0' is split twice"),
        (
            (Split("h0", "i", 2), Split("update0", "d0", 2)),
            "'update0', the next value of a state of 2 copies",
        ),
    ],
)
def test_what_cannot_be_copied(way: tuple[Split, ...], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        split_graph(step(), way)


def test_an_oracle_of_the_oracle() -> None:
    """Parts that hold their gradients for themselves leave other weights."""
    graph = step()
    split = split_graph_and_parts(graph, replicated_way(graph, 2))
    values = dict(split_outputs(graph, split))
    update = graph.tensor_index["update0"]
    assert (values[update, True] == whole_values(graph)[update]).all()
