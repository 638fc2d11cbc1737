"""Random models with random valid plans: the stages give what the whole model gives."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from onnx import helper, numpy_helper

from go_opt import from_onnx
from go_opt.env import load_target
from tests.copies import with_legal_relays
from tests.exports import BOOL, LIGHT, check_stages, info, integers, model, node, plan_of, saved, weight
from tests.replicated import random_stages, replicated_plan
from tests.strategies import examples, seeds


class Drawing:
    """Draws a model of tensors [4, 4], with views, constants, shapes and an If here and there."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.nodes: list[onnx.NodeProto] = []
        self.tensors = ["x", "late"]
        self.read: set[str] = set()

    def pick(self) -> str:
        tensor = str(self.rng.choice(self.tensors))
        self.read.add(tensor)
        return tensor

    def add(self, op_type: str, inputs: str, outputs: int = 1, **attributes: object) -> list[str]:
        number = len(self.nodes)
        names = [f"t{number}_{i}" for i in range(outputs)]
        name = "" if self.rng.random() < 0.2 else f"n{number}"
        self.nodes.append(node(op_type, inputs, " ".join(names), name, **attributes))
        return names

    def unary(self) -> list[str]:
        return self.add(str(self.rng.choice(["Relu", "Neg", "Sigmoid", "Identity"])), self.pick())

    def binary(self) -> list[str]:
        return self.add("Add", f"{self.pick()} {self.pick()}")

    def product(self) -> list[str]:
        return self.add("MatMul", f"{self.pick()} {self.rng.choice(['w', 'v'])}")

    def product_with_a_folded_weight(self) -> list[str]:
        return self.add("MatMul", f"{self.pick()} {self.add('Transpose', 'w')[0]}")

    def views(self) -> list[str]:
        flat = self.add("Reshape", f"{self.pick()} flat")[0]
        return self.add("Reshape", f"{flat} square")

    def shape_of_another(self) -> list[str]:
        return self.add("Reshape", f"{self.pick()} {self.add('Shape', self.pick())[0]}")

    def halves(self) -> list[str]:
        top, bottom = self.add("Split", self.pick(), 2, num_outputs=2)
        return self.add("Concat", f"{bottom} {top}", axis=0)

    def choice(self) -> list[str]:
        bodies = {
            f"{which}_branch": helper.make_graph(
                [node(op_type, f"{self.pick()} {tensor}", "r", "op")], which, [], [info("r", [4, 4])]
            )
            for which, op_type, tensor in (("then", "MatMul", "w"), ("else", "Sub", self.pick()))
        }
        return self.add("If", str(self.rng.choice(["cond", "known"])), **bodies)

    def model(self, size: int) -> onnx.ModelProto:
        kinds: list[Callable[[], list[str]]] = [
            self.unary,
            self.binary,
            self.product,
            self.product_with_a_folded_weight,
            self.views,
            self.shape_of_another,
            self.halves,
            self.choice,
        ]
        self.tensors += self.product()
        for _ in range(size):
            self.tensors += kinds[self.rng.integers(len(kinds))]()
        others = [t for t in self.tensors[3:] if t not in self.read or self.rng.random() < 0.1]
        shown = [self.tensors[2], *others]
        known = numpy_helper.from_array(np.array(self.rng.random() < 0.5), "known")
        weights = [
            weight("w", 4, 4),
            weight("v", 4, 4),
            integers("flat", 16),
            integers("square", 4, 4),
            known,
        ]
        inputs = [info("x", [4, 4]), info("late", [4, 4]), info("cond", [], BOOL)]
        return model(self.nodes, inputs, [info(tensor, [4, 4]) for tensor in shown], weights)


@given(seed=seeds)
@settings(max_examples=examples(40))
def test_any_chips_in_any_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = saved(Drawing(rng).model(int(rng.integers(1, 12))), Path(folder))
        chips = rng.integers(0, 8, from_onnx(path).num_ops)
        check_stages(path, plan_of(path, chips.tolist()), Path(folder) / "out")


@given(seed=seeds)
@settings(max_examples=examples(40))
def test_stages_with_replicas_and_relays(seed: int) -> None:
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = saved(Drawing(rng).model(int(rng.integers(3, 20))), Path(folder))
        graph, target = from_onnx(path), load_target("mcm-6x6")
        each = np.arange(graph.num_ops, dtype=np.int32)
        stages = random_stages(rng, each, each, int(rng.integers(1, 12)))
        plan = with_legal_relays(graph, target, replicated_plan(graph, target, *stages))
        manifest = check_stages(path, plan, Path(folder) / "out")
    assert {stage.parts for stage in manifest.stages} == {1}


def with_random_weights(name: str, folder: Path) -> Path:
    """A model of the onnx package; its weights, all alike, would hide a tensor that is mixed up."""
    proto = onnx.load(LIGHT / f"{name}.onnx")
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    filled = [one for one in proto.graph.node if one.op_type == "ConstantOfShape"]
    rng = np.random.default_rng(1)
    for one in filled:
        shape = shapes[one.input[0]].tolist()
        spread = 1 / np.sqrt(np.prod(shape[1:]))
        values = rng.normal(0, spread, shape) if len(shape) > 1 else rng.uniform(0.5, 1.5, shape)
        proto.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), one.output[0]))
        proto.graph.node.remove(one)
    proto.ir_version = 4
    return saved(proto, folder, name)


@pytest.mark.parametrize("name", ["light_squeezenet", "light_shufflenet", "light_inception_v1"])
def test_models_of_others(name: str, tmp_path: Path) -> None:
    path = with_random_weights(name, tmp_path)
    num_ops = from_onnx(path).num_ops
    manifest = check_stages(
        path, plan_of(path, [5 * op // num_ops for op in range(num_ops)]), tmp_path / "out"
    )
    assert [stage.chips for stage in manifest.stages] == [(0,), (1,), (2,), (3,), (4,)]
