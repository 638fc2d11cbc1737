"""Plans of torch programs as split specs, device maps and partitions of layers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import go_opt
from go_opt.cli.app import app
from go_opt.env.rewrites.applying import possible_rewrites, with_rewrites
from go_opt.errors import InvalidInputError, ModelError, PlanError
from go_opt.model.codecs.plan_json import save_plan
from go_opt.model.codecs.start_files import load_placement
from go_opt.model.plan import Plan, Split
from go_opt.model.start import OpStart, Start
from go_opt.run.export.torch_export import cuts, stage_numbers
from go_opt.search.methods.given import plan_as_it_stands
from go_opt.search.rewriting.choices import plan_as_sent
from tests.torch_programs import FOLDER

DECODER = FOLDER / "decoder.pt2"
GRAPH = go_opt.load(DECODER)
TARGET = go_opt.target("gpu-8")


def plan_of(*begins: str, chips: tuple[int, ...] = (0, 1, 2, 3)) -> Plan:
    """The decoder's plan with a stage that begins at each of these ops."""
    places = [GRAPH.op_index[op] for op in begins]
    stage = np.searchsorted(places, np.arange(GRAPH.num_ops), side="right")
    ops = {op: OpStart(chips[of]) for op, of in zip(GRAPH.op_names, stage.tolist(), strict=True)}
    return plan_as_it_stands(GRAPH, TARGET, Start(ops))


def test_stages_that_begin_at_layers(tmp_path: Path) -> None:
    plan = plan_of("layers.2.norm/layer_norm", "layers.4.norm/layer_norm", chips=(1, 0, 5))
    manifest = go_opt.export_torch(
        GRAPH, plan, tmp_path / "out", formats=["split-spec", "device-map", "vllm"]
    )
    out = tmp_path / "out"
    assert json.loads((out / "split_spec.json").read_text()) == {
        "layers.2": "BEGINNING",
        "layers.4": "BEGINNING",
    }
    assert json.loads((out / "device_map.json").read_text()) == {
        "embedding": 1, "layers.0": 1, "layers.1": 1, "layers.2": 0, "layers.3": 0, "layers.4": 5,
        "layers.5": 5, "head": 5,
    }  # fmt: skip
    assert (out / "vllm.env").read_text() == "VLLM_PP_LAYER_PARTITION=2,2,2\n"
    assert manifest.chips == (1, 0, 5)
    assert manifest.notes == ()
    assert set(manifest.intervals_s.values()) == {manifest.interval_s}
    assert json.loads((out / "manifest.json").read_text())["files"] == dict(manifest.files)
    assert load_placement(out / "device_map.json", GRAPH).on(GRAPH)[0].tolist() == plan.placement.tolist()


def test_rewrites_are_taken_back(tmp_path: Path) -> None:
    """No tool of PyTorch knows them: each op goes where that is that replaced it."""
    graph = go_opt.load(FOLDER / "joint_mlp.pt2")
    made = with_rewrites(graph, possible_rewrites(graph, ("transpose",)))
    assert made.num_ops < graph.num_ops
    plan = plan_as_it_stands(made, TARGET, Start({name: OpStart(0) for name in made.op_names}))
    manifest = go_opt.export_torch(graph, plan, tmp_path / "out", formats=["device-map"])
    sent = plan_as_sent(graph, made, plan)
    assert go_opt.verify(graph, TARGET, sent) == []
    assert manifest.interval_s == go_opt.evaluate(graph, TARGET, sent).interval_s
    assert set(json.loads((tmp_path / "out" / "device_map.json").read_text()).values()) == {0}


def test_stages_that_begin_inside_a_layer(tmp_path: Path) -> None:
    """The first op of layer 2, its norm, is still on the chip before."""
    plan = plan_of("layers.2.qkv/linear")
    manifest = go_opt.export_torch(GRAPH, plan, tmp_path / "out", formats=["split-spec", "vllm"])
    assert json.loads((tmp_path / "out" / "split_spec.json").read_text()) == {"layers.2.qkv": "BEGINNING"}
    assert (tmp_path / "out" / "vllm.env").read_text() == "VLLM_PP_LAYER_PARTITION=2,4\n"
    (note,) = manifest.notes
    assert "vllm: 1 op is on another chip than planned" in note
    assert "('layers.2.norm/layer_norm')" in note
    moved = plan_of("layers.2.norm/layer_norm")
    assert manifest.intervals_s["vllm"] == go_opt.evaluate(GRAPH, TARGET, moved).interval_s
    assert manifest.intervals_s["split-spec"] == manifest.interval_s


def test_a_stage_that_begins_behind_a_module(tmp_path: Path) -> None:
    plan = plan_of("layers.2/add_1", "layers.3.norm/layer_norm")
    go_opt.export_torch(GRAPH, plan, tmp_path / "out", formats=["split-spec"])
    spec = json.loads((tmp_path / "out" / "split_spec.json").read_text())
    assert spec == {"layers.2.down": "END", "layers.3": "BEGINNING"}


def test_a_module_that_both_begins_and_ends_a_stage(tmp_path: Path) -> None:
    plan = plan_of("layers.2.up/linear", "layers.2/gelu")
    with pytest.raises(PlanError, match=r"module 'layers\.2\.up' is a stage of its own"):
        go_opt.export_torch(GRAPH, plan, tmp_path / "out", formats=["split-spec"])


def test_modules_on_several_chips(tmp_path: Path) -> None:
    plan = plan_of("layers.2/scaled_dot_product_attention")
    manifest = go_opt.export_torch(GRAPH, plan, tmp_path / "out")
    found = json.loads((tmp_path / "out" / "device_map.json").read_text())
    assert found["layers.2.norm"] == found["layers.2.qkv"] == 0
    assert found["layers.2.up"] == found["layers.2.down"] == 1
    assert "layers.2" not in found
    chip = load_placement(tmp_path / "out" / "device_map.json", GRAPH).on(GRAPH)[0]
    moved = [op for op, a, b in zip(GRAPH.op_names, chip, plan.placement, strict=True) if a != b]
    assert all(op.startswith("layers.2/") for op in moved)
    note = next((note for note in manifest.notes if note.startswith("device-map")), "")
    assert (f"{len(moved)} op" in note) == bool(moved)


def test_one_chip(tmp_path: Path) -> None:
    go_opt.export_torch(DECODER, plan_of(), tmp_path / "out", target="gpu-8")
    assert json.loads((tmp_path / "out" / "device_map.json").read_text()) == {"": 0}
    assert json.loads((tmp_path / "out" / "split_spec.json").read_text()) == {}


def test_replicated_stages(tmp_path: Path) -> None:
    plan = plan_of("layers.2.norm/layer_norm", chips=(0, 2))
    size = np.where(plan.placement == 0, 2, 3).astype(np.int32)
    manifest = go_opt.export_torch(GRAPH, replace(plan, replication=size), tmp_path / "out")
    assert (manifest.chips, manifest.replication) == ((0, 2), (2, 3))


@given(seed=st.integers(0, 10**6))
def test_cuts_have_the_fewest_flops_on_the_wrong_side(seed: int) -> None:
    rng = np.random.default_rng(seed)
    stage = stage_numbers(rng.integers(0, 3, GRAPH.num_ops).astype(np.int32))[0]
    positions = sorted(rng.choice(np.arange(1, GRAPH.num_ops), 12, replace=False).tolist())

    def wrong(place: int, boundary: int) -> float:
        early, late = stage[:place] > boundary, stage[place:] <= boundary
        return float((GRAPH.op_flops[:place] + 1)[early].sum() + (GRAPH.op_flops[place:] + 1)[late].sum())

    best = [min(positions, key=lambda place: wrong(place, boundary)) for boundary in range(stage.max())]
    if len(set(best)) < len(best):
        with pytest.raises(PlanError, match="has no whole module"):
            cuts(GRAPH, stage, positions, "module")
    else:
        assert cuts(GRAPH, stage, positions, "module") == best == sorted(best)


def test_refused(tmp_path: Path) -> None:
    plan, out = plan_of("layers.2.norm/layer_norm"), tmp_path / "out"
    with pytest.raises(InvalidInputError, match="some of split-spec, device-map, vllm, not 'stages'"):
        go_opt.export_torch(GRAPH, plan, out, formats=["stages"])
    within = plan_of("layers.2.norm/layer_norm", "layers.2.qkv/linear", "layers.2.up/linear")
    with pytest.raises(PlanError, match="stage 2 of the plan has no whole layer: plan for fewer chips"):
        go_opt.export_torch(GRAPH, within, out, formats=["vllm"])
    mlp = go_opt.load(FOLDER / "mlp.pt2")
    alone = plan_as_it_stands(mlp, TARGET, Start({op: OpStart(0) for op in mlp.op_names}))
    with pytest.raises(PlanError, match="model 'mlp' has no list of layers"):
        go_opt.export_torch(mlp, alone, out, formats=["vllm"])
    with pytest.raises(PlanError, match="the plan is of another graph"):
        go_opt.export_torch(mlp, plan, out)
    with pytest.raises(
        PlanError, match=r"'head/linear' is split, which no tool .* takes; plan with --no-splits"
    ):
        go_opt.export_torch(GRAPH, replace(plan, splits=(Split("head/linear", "columns", 2),)), out)
    with pytest.raises(ModelError, match=r"is no torch program, a file that ends in \.pt2"):
        go_opt.export_torch(FOLDER / "mlp.onnx", plan, out)
    with pytest.raises(ModelError, match=r"is a torch program: go_opt\.export_torch says where"):
        go_opt.export(DECODER, plan, out)
    assert not out.exists()


def test_the_command(tmp_path: Path) -> None:
    save_plan(plan_of("layers.2.qkv/linear"), tmp_path / "plan.json")
    arguments = ["export", str(DECODER), str(tmp_path / "plan.json"), "-o", str(tmp_path / "out")]
    first = CliRunner().invoke(app, [*arguments, "--format", "vllm"])
    assert first.exit_code == 0, first.output
    assert "out: 2 stages of decoder; vllm\nvllm: 1 op is on another chip than planned" in first.stdout
    again = CliRunner().invoke(app, arguments)
    assert isinstance(again.exception, InvalidInputError)
    assert CliRunner().invoke(app, [*arguments, "--force"]).exit_code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "device_map.json", "manifest.json", "split_spec.json",
    ]  # fmt: skip
