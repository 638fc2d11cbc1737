"""The models inside the onnx package, counted against onnx-tool."""

from __future__ import annotations

import warnings
from pathlib import Path

import onnx
import pytest

from go_opt import from_onnx
from go_opt.model.graph import MATRIX

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"

# Multiply-adds of Conv and Gemm by onnx-tool 1.0.1. It counts a bias as one multiply-add per
# output, we count one FLOP: hence up to 0.4 % less here.
ONNX_TOOL_MACS = {
    "light_bvlc_alexnet": 655_170_024,
    "light_densenet121": 2_834_162_664,
    "light_inception_v1": 1_434_570_984,
    "light_inception_v2": 2_018_852_840,
    "light_resnet50": 4_089_185_256,
    "light_shufflenet": 124_966_584,
    "light_squeezenet": 351_741_288,
    "light_vgg19": 19_646_923_752,
    "light_zfnet512": 1_483_254_888,
}


@pytest.mark.parametrize("name", ONNX_TOOL_MACS)
def test_matrix_flops_agree_with_onnx_tool(name: str) -> None:
    graph = from_onnx(LIGHT / f"{name}.onnx")
    flops = graph.op_flops[graph.op_class == MATRIX].sum()
    assert flops == pytest.approx(2 * ONNX_TOOL_MACS[name], rel=0.005)


@pytest.mark.parametrize("name", ["light_resnet50", "light_squeezenet", "light_shufflenet"])
def test_the_figures_above_are_what_onnx_tool_says(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        onnx_tool = pytest.importorskip("onnx_tool")
        counted = onnx_tool.Model(onnx.load(LIGHT / f"{name}.onnx"), {"verbose": False}).graph
        counted.shape_infer()
        counted.profile()
    nodes = [node for node in counted.nodemap.values() if node.op_type in ("Conv", "Gemm")]
    assert sum(node.macs[0] for node in nodes) == ONNX_TOOL_MACS[name]


def test_resnet50_by_hand() -> None:
    # 25.56 M parameters of the published model; the file keeps each batch norm's four vectors
    # (106,240 numbers in 53 of them, two of four are counted as parameters).
    graph = from_onnx(LIGHT / "light_resnet50.onnx")
    weights = graph.tensor_elements[graph.tensor_kind == 1].sum()
    assert weights == 25_557_032 + 53_120
    assert graph.op_types.count("Conv") == 53
    # The first convolution: 64·112·112 outputs of 3·7·7 products.
    assert graph.op_flops[graph.op_types.index("Conv")] == pytest.approx(2 * 64 * 112 * 112 * 147, rel=0.01)
