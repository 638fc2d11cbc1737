"""Every command that takes a plan, on plans with every decision in them; and plan files of nonsense."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import onnx
import pytest

from go_opt import from_onnx, verify
from go_opt.env import Target, load_target
from go_opt.env.copies.splits import split_graph
from go_opt.errors import PlanError
from go_opt.model.codecs.plan_json import load_plan, names_to_dict, save_plan
from go_opt.model.codecs.wire import plan_from_proto, plan_to_proto
from go_opt.model.graph import Graph, Precision
from go_opt.model.plan import Plan, Relay, Split
from go_opt.search.splits.block_ways import blocks_of, splits_of_blocks
from tests.cli.conftest import Cli
from tests.exports import info, model, node, saved, weight
from tests.split_graphs import by_columns, by_rows, by_sums
from tests.transformers import encoder


def images() -> onnx.ModelProto:
    """Convolutions, each with a BatchNormalization that the file does not fold, and a Relu."""
    nodes, constants, source = [], [], "x"
    for i in range(3):
        constants += [weight(f"w{i}", 4, 4, 3, 3), *(weight(f"{one}{i}", 4) for one in "sbm")]
        constants.append(onnx.numpy_helper.from_array(np.ones(4, np.float32), f"v{i}"))
        nodes += [
            node("Conv", f"{source} w{i}", f"c{i}", f"conv{i}", pads=[1, 1, 1, 1]),
            node("BatchNormalization", f"c{i} s{i} b{i} m{i} v{i}", f"n{i}", f"norm{i}"),
            node("Relu", f"n{i}", f"r{i}", f"relu{i}"),
        ]
        source = f"r{i}"
    return model(nodes, [info("x", (1, 4, 16, 16))], [info(source, (1, 4, 16, 16))], constants)


def layers(rows: int | str = 8) -> onnx.ModelProto:
    """Products of a batch, whose first result is read again by the last op."""
    nodes = [node("MatMul", "x w0", "a0", "op0"), node("Relu", "a0", "a1", "op1")]
    nodes += [node("MatMul", "a1 w2", "a2", "op2"), node("Sigmoid", "a2", "a3", "op3")]
    nodes += [node("MatMul", "a3 w4", "a4", "op4"), node("Add", "a4 a0", "y", "op5")]
    weights = [weight(f"w{i}", 16, 16, seed=i) for i in (0, 2, 4)]
    return model(nodes, [info("x", (rows, 16))], [info("y", (rows, 16))], weights)


class Case(NamedTuple):
    model: onnx.ModelProto
    splits: tuple[Split, ...] = ()
    target: str = "gpu-8"
    changes: Mapping[str, Any] = MappingProxyType({})
    dims: Mapping[str, int] = MappingProxyType({})
    precision: Precision = "native"
    objective: str = "throughput"
    more: tuple[str, ...] = ()  # options of the commands that take constraints


def columns(
    proto: onnx.ModelProto, dims: Mapping[str, int] = MappingProxyType({}), **parts: int
) -> tuple[Split, ...]:
    graph = from_onnx(proto, dims=dims)
    return tuple(by_columns(graph, op, number) for op, number in parts.items())


def run_of_rows(proto: onnx.ModelProto, *ops: str, parts: int) -> tuple[Split, ...]:
    graph = from_onnx(proto)
    return tuple(by_rows(graph, op, parts, joined=op == ops[-1]) for op in ops)


def blocks(proto: onnx.ModelProto) -> tuple[Split, ...]:
    return tuple(splits_of_blocks(graph := from_onnx(proto), blocks_of(graph), 2))


IMAGES, ENCODER, LAYERS = images(), encoder(1, 8, 16, 4), layers()
CASES: Final = {
    "whole ops": Case(LAYERS),
    "columns": Case(LAYERS, columns(LAYERS, op2=3, op0=2)),
    "sums": Case(
        ENCODER, (by_sums(from_onnx(ENCODER), "l0d_product", 3), *columns(ENCODER, l0q_product=2))
    ),
    "blocks by heads": Case(ENCODER, blocks(ENCODER)),
    "rows": Case(IMAGES, run_of_rows(IMAGES, "conv0", "norm0", "relu0", "conv1", "norm1", "relu1", parts=3)),
    "rows of one op": Case(IMAGES, run_of_rows(IMAGES, "norm1", parts=2)),
    "a batch": Case(
        LAYERS, run_of_rows(LAYERS, *(f"op{i}" for i in range(6)), parts=2), objective="latency"
    ),
    "relays": Case(LAYERS, target="mcm-2x2", changes={
        "placement": np.array([0, 0, 1, 1, 2, 2]), "relays": (Relay("a0", (1,)),),
    }),
    "stages": Case(LAYERS, target="mcm-2x2", changes={
        "placement": np.array([0, 0, 2, 2, 2, 2]), "replication": np.array([2, 2, 1, 1, 1, 1]),
    }),
    "forwards": Case(LAYERS, target="mcm-2x2", changes={
        "replication": np.full(6, 4), "forwards": (0,),
    }),
    "a constraint": Case(LAYERS, more=("--constraints", "c.toml")),
    "as it is": Case(LAYERS, columns(LAYERS, op2=2), precision="as-is"),
    "a dimension": Case(layers("n"), columns(layers("n"), {"n": 8}, op2=2), dims={"n": 8}),
}  # fmt: skip


def made(case: Case) -> tuple[Graph, Target, Plan]:
    """The graph with the parts, the target, and a valid plan; by default each op is a kernel."""
    whole = from_onnx(case.model, dims=case.dims, precision=case.precision)
    graph, target = split_graph(whole, case.splits) if case.splits else whole, load_target(case.target)
    each = np.arange(graph.num_ops)
    chips = each * 3 // graph.num_ops if target.constraints.triangle == "off" else np.zeros_like(each)
    plan = Plan.create(
        graph,
        case.target,
        target.fingerprint,
        placement=chips,
        order=each,
        fusion_group=each,
        provenance="test",
    )
    arrays = {name: np.asarray(value, np.int32) for name, value in case.changes.items() if len(value) == 6}
    return graph, target, replace(plan, splits=case.splits, **(dict(case.changes) | arrays))


def written(case: Case, folder: Path) -> tuple[Path, Plan]:
    saved(case.model, folder, "m")
    graph, _, plan = made(case)
    facts = names_to_dict(graph, plan) | {"objective": case.objective}
    save_plan(replace(plan, model="m.onnx"), folder / "p.json", facts)
    (folder / "c.toml").write_text('[[pin]]\nops = "op0"\nchip = 0\n')
    return folder / "p.json", plan


@pytest.mark.parametrize("name", CASES)
def test_each_command_takes_each_decision(cli: Cli, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    _, plan = written(case, tmp_path)
    graph = made(case)[0]
    for command in (
        ("evaluate", "m.onnx", "p.json", *case.more),
        ("evaluate", "m.onnx", "p.json", "--fidelity", "simulated", "--json"),
        ("verify", "m.onnx", "p.json", *case.more),
        ("explain", "p.json", *case.more),
        ("explain", "p.json", "--json"),
        ("explain", "p.json", graph.op_names[0]),
        ("explain", "p.json", graph.op_names[-1], "--json"),
        ("report", "m.onnx", "p.json", "-o", "page.html", "--model-explorer", "nodes.json", *case.more),
        ("trace", "m.onnx", "p.json", "-o", "trace.json"),
        ("trace", "m.onnx", "p.json", "-o", "trace.json", "--fidelity", "analytical"),
        ("diff", "p.json", "p.json", "--model", "m.onnx"),
        ("export", "m.onnx", "p.json", "-o", "stages", "--format", "stages", "--format", "annotated"),
    ):
        run = cli(*command)
        assert run.code == 0, (command, run.err)
    assert cli("verify", "m.onnx", "p.json").out.startswith(f"valid: {len(plan.order)} ops")


@pytest.mark.parametrize("name", ["columns", "blocks by heads", "rows", "stages", "relays"])
def test_plans_with_decisions_run(cli: Cli, tmp_path: Path, name: str) -> None:
    written(CASES[name], tmp_path)
    assert cli("run", "m.onnx", "--plan", "p.json", "--inferences", "2").code == 0


NONSENSE: Final[tuple[Any, ...]] = (
    None,
    "",
    "bogus",
    -1,
    10**9,
    2**40,
    0.5,
    math.nan,
    [],
    {},
    [None],
    True,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Each value of a plan file, and of each list one of its entries."""
    yield at
    rows = (
        value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    )
    for key, inner in rows:
        yield from places(inner, (*at, key))


def mutants(data: Any, at: tuple[Any, ...]) -> Iterator[Any]:
    """The file with nonsense at a place, or a list there that is shorter or has an entry twice."""
    value = data
    for key in at:
        value = value[key]
    wrong = list(NONSENSE)
    if isinstance(value, list) and value:
        wrong += [value[:-1], [*value, value[-1]]]
    for one in wrong:
        if one != value or type(one) is not type(value):
            copied = json.loads(json.dumps(data))
            inside = copied
            for key in at[:-1]:
                inside = inside[key]
            inside[at[-1]] = one
            yield copied


# What any text may be in, or what may change without a contradiction: provenance is free, an entry of a
# map of dimensions may have any value that the model takes, a claim may be any number.
FREE: Final = {
    ("provenance", 0), ("model",), ("target",), ("version",), ("seed",), ("gap",), ("lower_bound_s",),
    ("costs", "file"), ("nodes_without_op",), ("provenance",),
    ("splits", 0, "collective"),  # of parts that have nothing to exchange
}  # fmt: skip
OPTIONAL: Final = {
    "op_names", "stages", "kernels", "nodes_without_op", "objective", "status", "lower_bound_s", "gap",
    "seed", "version", "costs",
}  # fmt: skip


@pytest.mark.parametrize("name", ["columns", "rows", "relays", "forwards"])
def test_no_field_holds_nonsense(tmp_path: Path, name: str) -> None:
    """Every field of a file, changed to nonsense, is refused when it is read or named by the verifier."""
    case = CASES[name]
    path, plan = written(case, tmp_path)
    whole = from_onnx(case.model)
    data = json.loads(path.read_text())
    data |= {"status": "FEASIBLE", "gap": 0.5, "lower_bound_s": 1e-6, "seed": 0, "version": "1"}
    for at in places(data):
        for mutant in mutants(data, at) if at else ():
            path.write_text(json.dumps(mutant))
            try:
                read = load_plan(path)
                message = verify(whole, case.target, read)
            except PlanError as error:
                message = [str(error)]
            value = mutant
            for key in at:
                value = value[key]
            if not message:
                is_missing = (at[0] in OPTIONAL and value is None) or (at == ("forwards",) and value == [])
                assert at in FREE or is_missing or is_same(read, plan), (at, value)


def is_same(read: Plan, plan: Plan) -> bool:
    """Whether a plan decides the same."""
    return plan_to_proto(replace(read, provenance=(), model="")) == plan_to_proto(
        replace(plan, provenance=(), model="")
    )


WRONG_MESSAGES: Final[dict[str, tuple[Any, ...]]] = {
    **dict.fromkeys(("placement", "order", "replication", "forwards", "op_provenance"), (2**31 - 1, "twice")),
    "fusion_group": ("twice",),
    "relays": ({"tensor": "nothing"}, {"tensor": ""}, {"chips": [9]}, {"chips": [2**31 - 1]}, "twice"),
    "splits": (
        {"op": "nothing"}, {"factor": "bogus"}, {"factor": ""}, {"kind": "columns"}, {"parts": 10**9},
        {"parts": 1}, {"parts": 4}, {"in_parts": None}, "twice",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ["columns", "blocks by heads", "rows", "relays", "forwards"])
def test_no_message_holds_nonsense(name: str) -> None:
    """As for files: numbers out of range, unknown names, wrong lengths, rows twice."""
    case = CASES[name]
    whole, (_, _, plan) = from_onnx(case.model), made(case)
    for field, changes in WRONG_MESSAGES.items():
        for change in changes if getattr(plan_to_proto(plan), field) else ():
            message = plan_to_proto(plan)
            rows = getattr(message, field)
            if change == "twice":
                rows.append(rows[0])
            elif not isinstance(change, dict):
                rows[0] = change
            for key, value in change.items() if isinstance(change, dict) else ():
                if key == "chips":
                    rows[0].chips[:] = value
                else:
                    setattr(rows[0], key, not rows[0].in_parts if value is None else value)
            try:
                changed = plan_from_proto(message)
                found: list[Any] = list(verify(whole, case.target, changed))
            except PlanError as error:
                found = [error]
            else:  # whether parts are joined may make no difference
                same = split_graph(whole, changed.splits) if changed.splits else whole
                found += [same] if same.fingerprint == plan.graph_fingerprint else []
            assert found, (field, change)


def test_splits_that_the_plan_of_whole_ops_only_claims(tmp_path: Path) -> None:
    """The fingerprint is that of whole ops, so the splits are of no graph."""
    graph, target, plan = made(CASES["whole ops"])
    for split in (Split("nothing", "j", 2), Split("op2", "j", 10**9), Split("op2", "n", 2)):
        with pytest.raises(PlanError, match="splits"):
            verify(graph, target, replace(plan, splits=(split,)))
