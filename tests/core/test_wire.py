"""Graphs and plans as messages: exact both ways, and malformed ones are refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.errors import GraphError, PlanError
from go_opt.model.bindings import Bindings
from go_opt.model.builder import GraphBuilder
from go_opt.model.codecs.plan_json import plan_to_dict
from go_opt.model.codecs.wire import (
    _built_graph,
    graph_from_columns,
    graph_from_proto,
    graph_to_proto,
    plan_from_proto,
    plan_to_proto,
)
from go_opt.model.graph import Graph, Rewrite
from go_opt.model.plan import Plan, Relay, Split
from go_opt.proto import graph_pb2, plan_pb2

ARRAYS = [
    "op_class",
    "op_flops",
    "op_dtype",
    "tensor_elements",
    "tensor_dtype",
    "tensor_kind",
    "tensor_producer",
    "tensor_is_output",
    "reader_ptr",
    "reader_op",
    "reader_elements",
]
OTHERS = ["name", "op_names", "op_types", "tensor_names", "bindings", "precision"]
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)


def assert_same_graph(actual: Graph, expected: Graph) -> None:
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name), strict=True)
        assert not getattr(actual, name).flags.writeable
    for name in OTHERS:
        assert getattr(actual, name) == getattr(expected, name)
    for mapping in ("measured_s", "excluded"):
        assert getattr(actual, mapping).keys() == getattr(expected, mapping).keys()
        for kind, row in getattr(expected, mapping).items():
            np.testing.assert_array_equal(getattr(actual, mapping)[kind], row, strict=True)
    assert actual.fingerprint == expected.fingerprint


def bindings() -> st.SearchStrategy[Bindings]:
    counts = st.dictionaries(NAMES, st.integers(0, 2**53), max_size=2)
    finite = st.floats(allow_nan=False, allow_infinity=False)
    values = st.dictionaries(NAMES, st.lists(finite, min_size=1, max_size=3).map(tuple), max_size=2)
    return st.builds(Bindings, counts, values, counts)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random graphs whose ops are added in any order, so that tensors stand in another than ops."""
    num_ops = draw(st.integers(1, 8))
    builder = GraphBuilder(
        draw(NAMES),
        precision=draw(st.sampled_from(["native", "as-is"])),
        bindings=draw(bindings()),
    )
    elements = st.integers(0, 2**53)
    for name, kind in (("w", "weight"), ("x", "input"), ("unread", "weight")):
        builder.add_tensor(name, draw(elements), draw(st.sampled_from(["float32", "int4"])), kind)
    for i in draw(st.permutations(range(num_ops))):
        earlier = st.sampled_from(["w", "x", *(f"t{j}" for j in range(i))])
        reads = draw(st.lists(st.tuples(earlier, st.none() | elements), max_size=3))
        builder.add_op(
            f"op {i} é",
            draw(NAMES),
            draw(st.sampled_from(["matrix", "vector", "data_movement"])),
            flops=draw(st.floats(0, 1e30)),
            dtype=draw(st.sampled_from(["bfloat16", "int8"])),
            reads=reads,
            writes=[(f"t{i}", draw(elements), "float32"), (f"unread{i}", 1, "bool")],
            measured_s=draw(st.dictionaries(st.sampled_from("ab"), st.floats(0, 1e3), max_size=2)),
            excluded_kinds=draw(st.sets(st.sampled_from("ab"))),
        )
        if draw(st.booleans()):
            builder.mark_output(f"t{i}")
    return builder.build()


@settings(deadline=None)
@given(graphs())
def test_graph_round_trip_is_exact(graph: Graph) -> None:
    sent = graph_to_proto(graph).SerializeToString()
    assert_same_graph(graph_from_proto(graph_pb2.Graph.FromString(sent)), graph)


def small_message() -> graph_pb2.Graph:
    """x -> a -> t -> b -> y, with a weight w read by both."""
    builder = GraphBuilder("small")
    builder.add_tensor("x", 8, "float32", "input")
    builder.add_tensor("w", 4, "float32", "weight")
    for name, source, result in (("a", "x", "t"), ("b", "t", "y")):
        builder.add_op(
            name,
            "Mul",
            "vector",
            flops=8,
            dtype="float32",
            reads=[(source, None), ("w", None)],
            writes=[(result, 8, "float32")],
        )
    builder.mark_output("y")
    return graph_to_proto(builder.build())


def _set(path: str, value: object) -> Callable[[graph_pb2.Graph], None]:
    """A change to the message: ``ops[0].flops`` is written ``ops 0 flops``."""
    *parents, last = path.split()

    def change(message: graph_pb2.Graph) -> None:
        node = message
        for part in parents:
            node = node[int(part)] if part.isdigit() else getattr(node, part)
        setattr(node, last, value)

    return change


X, W, T, Y = range(4)
MALFORMED = {
    "no ops": (lambda m: m.ClearField("ops"), "ops"),
    "nothing": (lambda m: m.Clear(), "has no ops"),
    "nan": (_set("ops 1 flops", float("nan")), "op 'b': flops"),
    "infinite": (_set("ops 1 flops", float("inf")), "op 'b': flops"),
    "negative flops": (_set("ops 0 flops", -1.0), "op 'a': flops"),
    "negative elements": (_set(f"tensors {W} elements", -1), "tensor 'w': elements"),
    "huge elements": (_set(f"tensors {W} elements", 2**63 - 1), "tensor 'w': elements"),
    "negative read": (_set(f"tensors {W} readers 0 elements", -5), "op 'a': elements read of 'w'"),
    "unknown nan": (
        lambda m: m.unknown_ops.add(name="a", flops=float("nan")),
        "unknown op 'a': flops",
    ),
    "measured nan": (lambda m: m.ops[0].measured_s.update({"k": float("nan")}), "op 'a': measured_s of 'k'"),
    "producer": (_set(f"tensors {T} producer", 2), "tensor 't': producer"),
    "negative producer": (_set(f"tensors {T} producer", -1), "tensor 't': producer"),
    "reader": (_set(f"tensors {T} readers 0 op", 7), "tensor 't': reader"),
    "negative reader": (_set(f"tensors {T} readers 0 op", -2), "tensor 't': reader"),
    "no producer": (lambda m: m.tensors[T].ClearField("producer"), "tensor 't'"),
    "weight with producer": (_set(f"tensors {W} producer", 0), "tensor 'w'"),
    "kind": (_set(f"tensors {W} kind", 9), "tensor 'w': kind"),
    "no kind": (_set(f"tensors {X} kind", 0), "tensor 'x': kind"),
    "class": (_set("ops 0 op_class", 0), "op 'a': op_class"),
    "unknown class": (_set("ops 0 op_class", 77), "op 'a': op_class"),
    "op dtype": (_set("ops 0 dtype", "float33"), "op 'a': unknown dtype 'float33'"),
    "tensor dtype": (_set(f"tensors {Y} dtype", ""), "tensor 'y': unknown dtype ''"),
    "same op name": (_set("ops 1 name", "a"), "op 'a' is defined twice"),
    "empty op name": (_set("ops 1 name", ""), "empty name"),
    "same tensor name": (_set(f"tensors {Y} name", "x"), "tensor 'x' is defined twice"),
    "cycle": (lambda m: m.tensors[Y].readers.add(op=0), "cycle: 'a' -> 'b' -> 'a'"),
    "own reader": (lambda m: m.tensors[T].readers.add(op=0), "cycle: 'a' -> 'a'"),
    "precision": (_set("precision", 9), "precision"),
    "dims": (lambda m: m.dims.update({"batch": -1}), "'dims': 'batch'"),
    "trips": (lambda m: m.trips.update({"loop": -1}), "'trips': 'loop'"),
    "values": (lambda m: m.values["x"].numbers.append(float("nan")), "'values': 'x'"),
    "no value": (lambda m: m.values["x"].SetInParent(), "'values': 'x'"),
    "state": (lambda m: m.states.add(read=9, next=Y, scope=1), "states[0].read must be an index"),
    "next value": (lambda m: m.states.add(read=X, next=-1, scope=1), "states[0].next must be an index"),
    "scope": (lambda m: m.states.add(read=X, next=Y), "scope"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_graph_is_refused_in_one_sentence(case: str) -> None:
    change, names = MALFORMED[case]
    message = small_message()
    change(message)
    with pytest.raises(GraphError) as error:
        graph_from_proto(message)
    assert names in str(error.value)
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)


def test_ops_may_come_in_any_order() -> None:
    message = small_message()
    message.ops.reverse()
    for tensor in message.tensors:
        for reader in tensor.readers:
            reader.op = 1 - reader.op
        if tensor.HasField("producer"):
            tensor.producer = 1 - tensor.producer
    assert_same_graph(graph_from_proto(message), graph_from_proto(small_message()))


@settings(deadline=None)
@given(graphs())
def test_columns_and_the_builder_make_the_same_graph(graph: Graph) -> None:
    message = graph_to_proto(graph)
    by_columns = graph_from_columns(message, graph.precision, graph.bindings)
    assert by_columns is not None  # what a graph is sent as is sorted
    assert_same_graph(by_columns, _built_graph(message, graph.precision, graph.bindings))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_columns_take_nothing_that_the_builder_refuses(data: st.DataObject) -> None:
    message = small_message()
    entry = data.draw(st.sampled_from([*message.ops, *message.tensors, message.tensors[W].readers[0]]))
    plain = [f for f in entry.DESCRIPTOR.fields if not (f.is_repeated or f.message_type)]
    field = data.draw(st.sampled_from(plain))
    if field.type == field.TYPE_STRING:
        setattr(entry, field.name, data.draw(st.sampled_from(["", "a", "b", "x", "t", "int8"])))
    elif field.type == field.TYPE_BOOL:
        setattr(entry, field.name, True)
    elif data.draw(st.booleans()):
        entry.ClearField(field.name)
    else:
        setattr(entry, field.name, data.draw(st.integers(-3, 9)))
    by_columns = graph_from_columns(message, "native", {})
    if by_columns is not None:
        assert_same_graph(by_columns, _built_graph(message, "native", {}))


def test_absent_elements_read_the_whole_tensor() -> None:
    message = small_message()
    message.tensors[W].readers[0].ClearField("elements")
    assert_same_graph(graph_from_proto(message), graph_from_proto(small_message()))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_graph_or_one_error(data: bytes) -> None:
    with suppress(DecodeError, GraphError):
        graph_from_proto(graph_pb2.Graph.FromString(data))


rewrites = st.builds(Rewrite, NAMES, st.lists(NAMES, min_size=1, max_size=3).map(tuple))
splits = st.builds(Split, NAMES, NAMES, st.integers(2, 2**31 - 1), st.booleans())


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    num_ops = draw(st.integers(1, 8))
    order = np.array(draw(st.permutations(range(num_ops))))
    graph = graph_from_proto(small_message())
    base = Plan.create(
        graph,
        draw(NAMES),
        "f" * 64,
        placement=np.array(draw(st.lists(st.integers(0, 4095), min_size=num_ops, max_size=num_ops))),
        order=order,
        fusion_group=np.array(draw(st.lists(st.integers(0, 3), min_size=num_ops, max_size=num_ops))),
        provenance=draw(NAMES),
    )
    relays = draw(st.lists(st.builds(Relay, NAMES, st.lists(st.integers(0, 35)).map(tuple)), max_size=2))
    values = {field: getattr(base, field) for field in base.__dataclass_fields__}
    values |= {
        "relays": tuple(relays),
        "splits": tuple(draw(st.lists(splits, max_size=2))),
        "rewrites": tuple(draw(st.lists(rewrites, max_size=2))),
        "replication": np.array(draw(st.lists(st.integers(1, 9), min_size=num_ops, max_size=num_ops))),
        "op_provenance": np.zeros(num_ops, dtype=np.int32),
        "bindings": draw(bindings()),
        "precision": draw(st.sampled_from(["native", "as-is"])),
        "model": draw(NAMES),
    }
    return Plan(**values)


def assert_same_plan(actual: Plan, expected: Plan) -> None:
    assert plan_to_dict(actual) == plan_to_dict(expected)
    for name in ("placement", "order", "fusion_group", "replication", "op_provenance"):
        array = getattr(actual, name)
        assert array.dtype == np.int32
        assert not array.flags.writeable


@settings(deadline=None)
@given(plans())
def test_plan_round_trip_is_exact(plan: Plan) -> None:
    sent = plan_to_proto(plan).SerializeToString()
    assert_same_plan(plan_from_proto(plan_pb2.Plan.FromString(sent)), plan)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("placement", [0]),
        ("placement", []),
        ("placement", [-1, 0]),
        ("order", [0, 0]),
        ("order", [0, 2]),
        ("fusion_group", [0, -1]),
        ("fusion_group", [0, 0, 0]),
        ("replication", [1, 0]),
        ("op_provenance", [0, 1]),
        ("provenance", []),
        ("clones", [plan_pb2.Clone(op="a", chip=1)]),
        ("rewrites", [plan_pb2.Rewrite(rule="fold")]),
        ("splits", [plan_pb2.Split(op="a", factor="k", parts=1)]),
        ("splits", [plan_pb2.Split(op="a", kind="columns", parts=2)]),
    ],
)
def test_malformed_plan_is_refused_by_field(field: str, value: list) -> None:
    message = plan_pb2.Plan(
        placement=[0, 1], order=[0, 1], fusion_group=[0, 1], replication=[1, 1], op_provenance=[0, 0]
    )
    message.provenance.append("test")
    plan_from_proto(message)
    message.ClearField(field)
    getattr(message, field).extend(value)
    with pytest.raises(PlanError, match=r"plan: [\w.\[\]]+ .*\.$"):
        plan_from_proto(message)


def test_a_thousand_ops_decode_fast() -> None:
    builder = GraphBuilder("chain")
    builder.add_tensor("t-1", 100, "float32", "input")
    for i in range(1000):
        builder.add_tensor(f"w{i}", 100, "float32", "weight")
        builder.add_op(
            f"op{i}",
            "MatMul",
            "matrix",
            flops=1e6,
            dtype="float32",
            reads=[(f"t{i - 1}", None), (f"w{i}", None)],
            writes=[(f"t{i}", 100, "float32")],
        )
    sent = graph_to_proto(builder.build()).SerializeToString()
    times_s = []
    for _ in range(5):
        start_s = time.process_time()
        graph_from_proto(graph_pb2.Graph.FromString(sent))
        times_s.append(time.process_time() - start_s)
    # 25 ms is the budget; a loaded machine gets some slack.
    assert min(times_s) < 0.05
