"""The verifier finds every mutant of a rewritten graph, and rewrites that no rule allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from go_opt import from_onnx
from go_opt.common.arrays import frozen
from go_opt.env.rewrites import folding, joining, transposing
from go_opt.env.rewrites.applying import possible_rewrites, with_rewrites
from go_opt.model.graph import Graph, Rewrite
from go_opt.solver.verify.rewrites import broken_rewrites
from tests.env.rewrite_oracle import Numbers, Values, evaluated, random_values
from tests.exports import info, model, node, weight
from tests.rewritten import branches, convolutions, heads, random_turns, unrolled


def _changed(graph: Graph, field: str, at: int, value: object) -> Graph:
    column = getattr(graph, field)
    if isinstance(column, tuple):
        return replace(graph, **{field: (*column[:at], value, *column[at + 1 :])})
    copy = column.copy()
    copy[at] = value
    return replace(graph, **{field: frozen(copy)})


def _with_rule(graph: Graph, op: int, size: int) -> Graph:
    row = graph.known_rule_of(op)
    factors = (row.rule.factors[0]._replace(size=size), *row.rule.factors[1:])
    return _changed(graph, "op_rules", op, row._replace(rule=row.rule._replace(factors=factors)))


MUTANTS: dict[str, Callable[[Graph], Graph]] = {
    "flops": lambda graph: _changed(graph, "op_flops", 1, 1.0),
    "type": lambda graph: _changed(graph, "op_types", 2, "Tanh"),
    "class": lambda graph: _changed(graph, "op_class", 3, 1),
    "type of the computation": lambda graph: _changed(graph, "op_dtype", 1, 0),
    "name": lambda graph: _changed(graph, "op_names", 1, "conv1"),
    "size of a weight": lambda graph: _changed(
        graph, "tensor_elements", graph.tensor_index["conv1 and 2 more/operand 1"], 26
    ),
    "type of a weight": lambda graph: _changed(
        graph, "tensor_dtype", graph.tensor_index["conv1 and 2 more/operand 2"], 2
    ),
    "output": lambda graph: _changed(graph, "tensor_is_output", graph.tensor_index["a1"], True),
    "what is read": lambda graph: _changed(graph, "reader_elements", 0, 1),
    "producer": lambda graph: _changed(graph, "tensor_producer", graph.tensor_index["a1"], 1),
    "rule": lambda graph: _with_rule(graph, 1, 7),
    "fingerprint": lambda graph: replace(graph, sent_fingerprint="0" * 64),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name: str) -> None:
    sent = from_onnx(branches())
    rewrites = possible_rewrites(sent)
    made = with_rewrites(sent, rewrites)
    assert list(broken_rewrites(sent, made, rewrites)) == []
    assert list(broken_rewrites(sent, MUTANTS[name](made), rewrites)) != []


def test_rewrites_of_another_graph_are_found() -> None:
    sent = from_onnx(branches())
    rewrites = possible_rewrites(sent)
    made = with_rewrites(sent, rewrites)
    assert list(broken_rewrites(sent, made, rewrites[:1]))
    assert list(broken_rewrites(sent, sent, rewrites))
    for wrong in (
        Rewrite("merge", ("conv1", "conv1")),
        Rewrite("join", ("conv1",)),
        Rewrite("fold", ("nothing",)),
    ):
        assert list(broken_rewrites(sent, made, (wrong,)))


def _toy(*nodes: tuple[str, str, str, str], outputs: tuple[str, ...] = ("y",)) -> Graph:
    weights = [
        weight("w", 5, 4),
        weight("s", 4),
        weight("one", 1),
        weight("rows", 4, 1),
        weight("u", 5, 4),
        weight("k", 4, 4),
    ]
    made = [node(op_type, reads, writes, name) for op_type, reads, writes, name in nodes]
    return from_onnx(model(made, [info("x", [4, 5])], [info(one, [4, 4]) for one in outputs], weights))


GEMM = ("Gemm", "x w", "a", "gemm")
WRONG: dict[str, tuple[Graph, Rewrite]] = {
    "a factor for each row": (_toy(GEMM, ("Mul", "a rows", "y", "mul")), Rewrite("fold", ("gemm", "mul"))),
    "the host reads the product": (
        _toy(GEMM, ("Mul", "a s", "y", "mul"), outputs=("y", "a")), Rewrite("fold", ("gemm", "mul"))),
    "a constant over the product": (_toy(GEMM, ("Div", "s a", "y", "div")), Rewrite("fold", ("gemm", "div"))),
    "a function": (_toy(GEMM, ("Relu", "a", "y", "relu")), Rewrite("fold", ("gemm", "relu"))),
    "another reader": (
        _toy(GEMM, ("Mul", "a s", "b", "mul"), ("Add", "a b", "y", "add")), Rewrite("fold", ("gemm", "mul"))),
    "another reader of the weight": (
        _toy(GEMM, ("Gemm", "x w", "b", "other"), ("Mul", "a s", "c", "mul"), ("Add", "b c", "y", "add")),
        Rewrite("fold", ("gemm", "mul"))),
    "a MatMul has no bias": (
        _toy(("MatMul", "x w", "a", "gemm"), ("Add", "a s", "y", "add")), Rewrite("fold", ("gemm", "add"))),
    "a path connects them": (
        _toy(GEMM, ("Gemm", "a k", "b", "other"), ("Add", "a b", "y", "add")),
        Rewrite("merge", ("gemm", "other"))),
    "a bias of one element": (
        _toy(("MatMul", "x w", "a", "gemm"), ("Add", "a one", "y", "add")), Rewrite("bias", ("gemm", "add"))),
    "a bias of rows": (
        _toy(("MatMul", "x w", "a", "gemm"), ("Add", "a rows", "y", "add")),
        Rewrite("bias", ("gemm", "add"))),
    "no bias": (
        _toy(("MatMul", "x w", "a", "gemm"), ("Mul", "a s", "y", "mul")), Rewrite("bias", ("gemm", "mul"))),
    "a bias over a Gemm": (
        _toy(GEMM, ("Add", "a s", "y", "add")), Rewrite("bias", ("gemm", "add"))),
    "the host reads what has no bias": (
        _toy(("MatMul", "x w", "a", "gemm"), ("Add", "a s", "y", "add"), outputs=("y", "a")),
        Rewrite("bias", ("gemm", "add"))),
    "functions differ": (
        _toy(GEMM, ("Gemm", "x u", "b", "other"), ("Relu", "a", "c", "relu"), ("Tanh", "b", "d", "tanh"),
             ("Add", "c d", "y", "add")),
        Rewrite("merge", ("gemm", "relu", "other", "tanh"))),
}  # fmt: skip


STEPS: dict[str, tuple[Graph, Rewrite]] = {
    "a path": (from_onnx(unrolled()), Rewrite("batch", ("state0_0", "state0_1"))),
    "a path through others": (from_onnx(unrolled()), Rewrite("batch", ("state0_0", "state0_2"))),
    "weights differ": (from_onnx(unrolled()), Rewrite("batch", ("input0_0", "input1_0"))),
    "one twice": (from_onnx(unrolled()), Rewrite("batch", ("input0_0", "input0_0"))),
    "no product": (from_onnx(unrolled()), Rewrite("batch", ("tanh0_0", "tanh1_0"))),
    "another bias": (
        from_onnx(unrolled(2, gemm=False)), Rewrite("batch", ("input0_0", "bias0_0", "input1_0", "bias1_0"))),
    "ops of others": (
        from_onnx(unrolled(2, gemm=False)), Rewrite("batch", ("input0_0", "bias0_1", "input0_1", "bias0_0"))),
    "a sum of two products": (
        from_onnx(unrolled(2)), Rewrite("batch", ("input0_0", "sum0_0", "input0_1", "sum0_1"))),
    "one tensor": (
        _toy(GEMM, ("Gemm", "x w", "b", "other"), ("Add", "a b", "y", "add")),
        Rewrite("batch", ("gemm", "other"))),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_products_that_cannot_be_batched_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the rule did not look for paths."""
    sent, rewrite = STEPS[name]
    monkeypatch.setattr(joining, "_are_connected", lambda *_: False)
    monkeypatch.setattr(joining, "_behind", lambda _, product, __: [product] * len(rewrite.ops))
    try:
        made = with_rewrites(sent, (rewrite,))
    except Exception:
        made = replace(sent, rewrites=(rewrite,))
    found = next(broken_rewrites(sent, made, (rewrite,)))
    assert found.startswith("rewrite 'batch' of op ")


BATCHED: dict[str, Callable[[Graph], Graph]] = {
    "rows": lambda graph: _with_rule(graph, graph.op_index["input0_0 and 2 more"], 7),
    "size": lambda graph: _changed(
        graph, "tensor_elements", graph.tensor_index["input0_0 and 2 more/operand 0"], 14
    ),
    "kind": lambda graph: _changed(
        graph, "tensor_kind", graph.tensor_index["input0_0 and 2 more/operand 0"], 1
    ),
    "flops": lambda graph: _changed(graph, "op_flops", graph.op_index["input0_0 and 2 more/concat"], 1.0),
    "weight": lambda graph: _changed(graph, "tensor_elements", graph.tensor_index["w0"], 60),
}


@pytest.mark.parametrize("name", BATCHED)
def test_mutants_of_batched_steps_are_found(name: str) -> None:
    sent = from_onnx(unrolled())
    rewrites = possible_rewrites(sent)
    made = with_rewrites(sent, rewrites)
    assert list(broken_rewrites(sent, made, rewrites)) == []
    assert list(broken_rewrites(sent, BATCHED[name](made), rewrites)) != []


def _turned(axes: Sequence[int]) -> Graph:
    """Scores of heads, of which one axis of the keys is read as another."""
    sent = from_onnx(heads())
    made = with_rewrites(sent, possible_rewrites(sent, ("transpose",)))
    op = made.op_index["scores"]
    row = made.known_rule_of(op)
    keys = tuple(row.rule.operands[1][axis] for axis in axes)
    return _changed(
        made, "op_rules", op, row._replace(rule=row.rule._replace(operands=(row.rule.operands[0], keys)))
    )


def test_mutants_of_products_that_took_over_transposes_are_found() -> None:
    sent = from_onnx(heads())
    rewrites = possible_rewrites(sent, ("transpose",))
    values = random_values(sent, 0)
    right = _evaluated_scores(_turned(range(4)), values)
    assert list(broken_rewrites(sent, _turned(range(4)), rewrites)) == []
    for axes in ((2, 1, 0, 3), (0, 3, 2, 1), (0, 2, 1, 3)):
        assert list(broken_rewrites(sent, _turned(axes), rewrites)) != []
        assert not np.array_equal(right, _evaluated_scores(_turned(axes), values))


def _evaluated_scores(graph: Graph, values: Values) -> Numbers:
    return evaluated(graph, values)["s"]


@pytest.mark.parametrize("seed", range(40))
def test_products_that_no_kernel_reads_are_found(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the rule did not look, the check finds those, and only those, that it would have left."""
    sent = from_onnx(random_turns(seed))
    right = possible_rewrites(sent)
    monkeypatch.setattr(transposing, "is_strided", lambda rule: True)
    found = possible_rewrites(sent)
    broken = list(broken_rewrites(sent, with_rewrites(sent, found), found))
    assert (broken == []) == (found == right)


@pytest.mark.parametrize("name", WRONG)
def test_what_no_rule_allows_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the rules did not look."""
    sent, rewrite = WRONG[name]
    monkeypatch.setattr(folding, "_may_fold", lambda *_: True)
    monkeypatch.setattr(joining, "_kinds", lambda *_: iter(()))
    monkeypatch.setattr(folding, "continues", lambda *_: True)
    made = sent
    try:
        made = with_rewrites(sent, (rewrite,))
    except Exception:  # some of these cannot even be made
        made = replace(sent, rewrites=(rewrite,))
    assert list(broken_rewrites(sent, made, (rewrite,)))


def test_measured_ops_stay() -> None:
    sent = from_onnx(convolutions())
    measured = replace(sent, measured_s={"chip": frozen(np.full(sent.num_ops, 1e-6))})
    assert possible_rewrites(measured) == ()
    rewrites = possible_rewrites(sent)
    assert list(broken_rewrites(measured, with_rewrites(sent, rewrites), rewrites))
