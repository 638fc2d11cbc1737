"""Ops that cost more than their elements: one rule in all frontends, or named unknown; programs are read."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.core import Primitive

import go_opt
from go_opt.errors import ModelError
from go_opt.frontends.jax.primitives import primitive_cost
from go_opt.frontends.torch.aten import Operand, operator, operator_cost
from go_opt.model.op_costs import OpSignature, op_cost


def torch_cost(
    target: str, operands: dict[str, tuple[int, ...]], output: tuple[int, ...], **attributes: Any
) -> Any:
    name, _ = operator(f"torch.ops.aten.{target}.default")
    return operator_cost(name, attributes, [Operand(*one) for one in operands.items()], [output])


@pytest.mark.parametrize(
    ("target", "operands", "output", "attributes", "flops"),
    [
        # A real transform of 3·8·8 elements, of length 64: 2.5 · 192 · 6. The batch is no length.
        ("fft_rfft2", {"self": (3, 8, 8)}, (3, 8, 5), {}, 2880),
        ("_fft_r2c", {"self": (3, 8, 8)}, (3, 8, 5), {"dim": [1, 2]}, 2880),
        ("_fft_c2r", {"self": (3, 8, 5)}, (3, 8, 8), {"dim": [1, 2]}, 2880),
        ("fft_fft", {"self": (4096, 16)}, (4096, 16), {}, 5 * 4096 * 16 * 4),
        ("fft_ifft", {"self": (16, 32)}, (16, 32), {"dim": 0}, 5 * 512 * 4),
        # 10 frames of 16 samples: 2.5 · 160 · 4.
        ("stft", {"self": (80,)}, (9, 10), {"n_fft": 16}, 1600),
        ("linalg_cholesky_ex", {"self": (2, 6, 6)}, (2, 6, 6), {}, 2 * 216 / 3),
        ("_linalg_eigh", {"A": (4, 4)}, (4,), {}, 9 * 64),
        ("_linalg_svd", {"A": (8, 4)}, (8, 4), {}, 22 * 8 * 16),
        ("linalg_qr", {"A": (4, 8)}, (4, 4), {}, 4 / 3 * 8 * 16),
        ("linalg_inv_ex", {"A": (4, 4)}, (4, 4), {}, 2 * 64),
        # 2/3 · 4³ for the factors, 2 · 4² for each of 5 right-hand sides.
        ("_linalg_solve_ex", {"A": (4, 4), "B": (4, 5)}, (4, 5), {}, 2 / 3 * 64 + 2 * 16 * 5),
        ("linalg_solve_triangular", {"self": (4, 4), "B": (4, 5)}, (4, 5), {}, 16 * 5),
        ("triangular_solve", {"self": (4, 5), "A": (4, 4)}, (4, 5), {}, 16 * 5),
        ("_cdist_forward", {"x1": (7, 3), "x2": (5, 3)}, (7, 5), {}, 3 * 7 * 5 * 3),
        ("_int_mm", {"self": (3, 4), "mat2": (4, 5)}, (3, 5), {}, 120),
        ("tensordot", {"self": (3, 4, 2), "other": (4, 2, 5)}, (3, 5), {"dims_self": [1, 2]}, 2 * 15 * 8),
        ("linalg_multi_dot", {"a": (3, 4), "b": (4, 5), "c": (5, 6)}, (3, 6), {}, 120 + 180),
        # Two gradients, each as dear as 2 · 50 outputs · 3·3·3 products.
        (
            "convolution_backward",
            {"grad_output": (1, 2, 5, 5), "input": (1, 3, 7, 7), "weight": (2, 3, 3, 3)},
            (1, 3, 7, 7),
            {"output_mask": [True, True, False]},
            2 * 2 * 50 * 27,
        ),
        # Rows of [B, S, H, D]: 4 heads of depth 8, 6 rows and columns.
        ("_flash_attention_forward", dict.fromkeys("qkv", (1, 6, 4, 8)), (1, 6, 4, 8), {}, 2 * 2304 + 864),
        # 2 rows meet [12, 5] and [12, 3]: 2·2·96, and 4 per gate.
        (
            "lstm_cell",
            {"input": (2, 5), "hx": (2, 3), "w_ih": (12, 5), "w_hh": (12, 3)},
            (2, 3),
            {},
            2 * 2 * 96 + 4 * 2 * 12,
        ),
        ("cumsum", {"self": (4, 5)}, (4, 5), {}, 20),
        ("kthvalue", {"self": (4, 5)}, (4,), {}, 200),
        ("mse_loss", {"self": (4, 5), "target": (4, 5)}, (), {}, 60),
    ],
)
def test_operators_of_aten(
    target: str, operands: Any, output: tuple[int, ...], attributes: dict[str, Any], flops: float
) -> None:
    _, cost = torch_cost(target, operands, output, **attributes)
    assert cost.is_known
    assert cost.flops == pytest.approx(flops)


def test_one_rule_of_transforms_in_all_frontends() -> None:
    image = jax.ShapeDtypeStruct((3, 8, 8), np.float32)
    traced = go_opt.from_jax(jnp.fft.rfft2, image)
    text = jax.jit(jnp.fft.rfft2).lower(image).as_text()
    _, of_torch = torch_cost("fft_rfft2", {"self": (3, 8, 8)}, (3, 8, 5))
    assert traced.op_flops.sum() == go_opt.from_stablehlo(text).op_flops.sum() == of_torch.flops
    along = op_cost(OpSignature("DFT", ((3, 64, 1),), ((3, 33, 2),), {"axis": 1}))
    rows = jax.ShapeDtypeStruct((3, 64), np.float32)
    assert along.flops == go_opt.from_jax(jnp.fft.rfft, rows).op_flops.sum() == 2.5 * 192 * 6


# Families whose ops cost more than an element-wise op; a form that no rule has is named unknown.
_DEAR = (
    "cholesky", "conv", "cum", "dot_", "eig", "fft", "gemm", "inverse", "linalg", "lu_", "matmul", "mm",
    "qr_", "schur", "solve", "sort", "svd", "top",
)  # fmt: skip


def test_dear_primitives_of_jax_have_rules_or_are_unknown() -> None:
    import gc

    names = sorted({one.name for one in gc.get_objects() if isinstance(one, Primitive)})
    checked = 0
    for name in names:
        if not any(family in name for family in _DEAR) or re.search("convert|gamma", name):
            continue
        try:
            cost = primitive_cost(name, {}, [(16, 16), (16, 16)], [(16, 16)])
        except (KeyError, IndexError):  # the rule needs its parameters
            continue
        checked += 1
        is_moved = cost.op_class == "data_movement"
        assert is_moved or not cost.is_known or cost.flops > 256 or name.startswith("cum"), name
    assert checked > 10


def test_dear_operators_of_aten_have_rules_or_are_unknown() -> None:
    torch = pytest.importorskip("torch")
    names = {
        name.removeprefix("aten::").split(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::")
    }
    cheap = []
    square = [Operand(argument, (16, 16)) for argument in ("input", "weight")]
    for name in sorted(names):
        plain, _ = operator(f"torch.ops.aten.{name}.default")
        if not any(family in plain for family in _DEAR) or re.search("cum|convert|gamma|scaled_dot", plain):
            continue
        try:
            op_type, cost = operator_cost(plain, {}, square, [(16, 16)])
        except (KeyError, IndexError, TypeError):
            continue
        if cost.op_class != "data_movement" and cost.is_known and cost.flops <= 256:
            cheap.append((name, op_type))
    assert cheap == []


SHARDED = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()), ("x",))
fn = jax.shard_map(
    lambda a, b: jax.lax.psum(a @ b, "x"), mesh=mesh, in_specs=(P(None, "x"), P("x", None)), out_specs=P()
)
x = jax.ShapeDtypeStruct((128, 128), np.float32)
import go_opt
from go_opt.errors import ModelError
for is_shardy in (True, False):
    jax.config.update("jax_use_shardy_partitioner", is_shardy)
    text = jax.jit(fn).lower(x, x).as_text()
    assert ("sdy." in text) == is_shardy
    for load in (lambda: go_opt.from_stablehlo(text), lambda: go_opt.from_jax(fn, x, x)):
        try:
            print(load())
        except ModelError as error:
            print("refused:", error)
"""


def test_sharded_programs_are_refused() -> None:
    """Each device's part is a quarter of the 4,194,304 FLOP of the model, whichever dialect says so."""
    run = subprocess.run(
        [sys.executable, "-c", SHARDED], capture_output=True, text=True, check=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"}, timeout=300,
    )  # fmt: skip
    said = run.stdout.splitlines()
    assert len(said) == 4
    for text, function in (said[:2], said[2:]):
        assert text.startswith("refused: op '")
        assert "program" in text
        assert function.startswith("refused: op 'shard_map'")


REGION = """
module { func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = OP
  return %0 : tensor<4xf32> }
  func.func private @inner(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.exponential %a : tensor<4xf32>
  return %0 : tensor<4xf32> } }
"""


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ('"stablehlo.custom_call"(%a) {call_target_name = "x", called_computations = [@inner]}', "x"),
        ('"stablehlo.all_reduce"(%a) ({^bb0(%x: tensor<f32>, %y: tensor<f32>): "stablehlo.return"(%x) : '
         "(tensor<f32>) -> ()}) {replica_groups = dense<0> : tensor<1x1xi64>}", "all_reduce"),
    ],
)  # fmt: skip
def test_programs_that_are_not_read_are_refused(op: str, name: str) -> None:
    with pytest.raises(ModelError, match=f"^op '{name}': ") as caught:
        go_opt.from_stablehlo(REGION.replace("OP", f"{op} : (tensor<4xf32>) -> tensor<4xf32>"))
    assert "\n" not in str(caught.value)


def test_composites_are_read() -> None:
    op = 'stablehlo.composite "mine.exp" %a {decomposition = @inner} : (tensor<4xf32>) -> tensor<4xf32>'
    assert go_opt.from_stablehlo(REGION.replace("OP", op)).op_types == ("Exp",)


def test_a_reduction_by_a_program_costs_its_ops() -> None:
    x = jax.ShapeDtypeStruct((64, 8), np.float32)
    graph = go_opt.from_jax(lambda x: jax.lax.reduce(x, 0.0, lambda a, b: a * b + a, (0,)), x)
    assert graph.op_flops.sum() == 2 * math.prod(x.shape)
