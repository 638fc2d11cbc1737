"""Sharding rules against ops that others evaluate: parts of an op are the whole op, for every op type.

Each random node is evaluated whole by the reference of ONNX, by ONNX Runtime or by a few lines of NumPy. Its
rule says what a part reads and where its result lies. Sums and products are of small whole numbers, so that
they are exact. Rules that are made wrong must fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest

from go_opt.frontends.recording.recorder import Recorder, Value
from go_opt.frontends.torch.rules import in_terms_of_table
from go_opt.model.op_costs import OpCost, OpSignature, op_cost
from go_opt.model.rule import (
    NO_FACTOR,
    NO_PRODUCT,
    Affine,
    Factor,
    Product,
    Rule,
    fault_of,
    product_of,
)
from go_opt.model.rules.table import _RULES, rule_of
from tests.core.rules import layers
from tests.core.rules.cases import CASES
from tests.core.rules.changes import cuts, run_part
from tests.core.rules.parts import Array, Node, fault_of_factor, rule_from_importer, shape_fault
from tests.core.rules.wrong import is_found, may_be_divided, wrong_rules

OP_TYPES: Final = sorted(_RULES)
# Of these, a factor that is whole could be divided: blocks of a weight whose size no attribute tells, and
# operands of which only the shape is read.
CAUTIOUS: Final = {"ConstantOfShape", "MatMulFpQ4"}


def nodes(op_type: str, count: int) -> Iterator[tuple[Node, Rule, list[Array]]]:
    """Random nodes of an op type that have a rule, with their results."""
    for make in CASES[op_type]:
        for seed in range(count):
            node = make(np.random.default_rng(seed), op_type)
            whole = node.run(node.operands, node.attributes)
            rule = rule_from_importer(node, whole)
            if rule is not None:
                yield node, rule, whole


def test_every_op_type_has_a_case() -> None:
    assert sorted(CASES) == OP_TYPES


@pytest.mark.parametrize("op_type", OP_TYPES)
def test_parts_are_the_whole(op_type: str) -> None:
    rng = np.random.default_rng(0)
    kinds: Counter[str] = Counter()
    for node, rule, whole in nodes(op_type, 10):
        assert shape_fault(node, rule, whole) == "", node
        for i, factor in enumerate(rule.factors):
            if factor.kind != "whole":
                kinds[factor.kind] += 1
                fault = fault_of_factor(node, rule, whole, i, run_part, cuts(rng, factor.size))
                assert fault == "", (node, rule)
    assert kinds.total() > 2


@pytest.mark.parametrize("op_type", OP_TYPES)
def test_wrong_rules_fail(op_type: str) -> None:
    made: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for node, rule, whole in nodes(op_type, 3 if CASES[op_type] == CASES["Add"] else 8):
        for kind, wrong, factors in wrong_rules(rule):
            if may_be_divided(wrong, factors) and not node.is_random:
                made[kind] += 1
                found[kind] += is_found(node, wrong, whole, factors)
    missed = {kind for kind in made if not found[kind]}
    assert missed <= ({"divided"} if op_type in CAUTIOUS else set())
    # Others are no faults: factors of a sum are exchanged, or the numbers drawn do not tell.
    assert found.total() >= 0.8 * made.total() or op_type in CAUTIOUS


def test_each_kind_of_wrong_rule_is_made() -> None:
    kinds = {kind for _, rule, _ in nodes("Conv", 5) for kind, _, _ in wrong_rules(rule)}
    kinds |= {kind for _, rule, _ in nodes("Softmax", 5) for kind, _, _ in wrong_rules(rule)}
    assert kinds == {"before", "dilation", "divided", "stride", "swapped"}


# ------------------------------------------------------------------ what has no rule


def no_rule(
    op_type: str, inputs: list[tuple[int, ...]], *outputs: tuple[int, ...], **attributes: Any
) -> bool:
    return rule_of(OpSignature(op_type, tuple(inputs), outputs, attributes)) is None


def test_ops_whose_parts_are_no_such_op_have_no_rule() -> None:
    image = (2, 3, 4, 4)
    assert no_rule("MaxPool", [image], image, image, kernel_shape=(1, 1))  # places in the whole operand
    assert no_rule("BatchNormalization", [image, *[(3,)] * 4], image, training_mode=1)  # of all samples
    assert no_rule("RandomNormal", [], image, seed=1.0)  # equal numbers in each part
    assert no_rule("random_bits", [(2,)], image)
    assert no_rule("Resize", [image], image, coordinate_transformation_mode="tf_half_pixel_for_nn")
    assert no_rule("FusedMatMul", [(2, 3, 4), (2, 4, 5)], (2, 3, 5), transBatchA=1)
    assert no_rule("MatMulBnb4", [(2, 6), (9, 1), (5,)], (2, 3), block_size=4)  # blocks over ends of rows
    assert no_rule("RotaryEmbedding", [(2, 2, 4), (2, 2), (2, 2), (2, 2)], (2, 2, 4))  # which are places?
    assert no_rule("Einsum", [(3, 3)], (3,), equation="ii->i")  # a diagonal


def test_a_scale_that_is_not_in_the_file_hides_the_axes() -> None:
    node = layers.resizing(np.random.default_rng(5), "Upsample")
    whole = node.run(node.operands, node.attributes)
    assert rule_from_importer(node, whole) is not None
    assert rule_from_importer(node._replace(constants=()), whole) is None


def of_torch(name: str, op_type: str, *shapes: tuple[int, ...], **attributes: Any) -> Rule:
    """The rule of an operator of ATen whose result is as its first operand."""
    inputs = [Value(shape, "float32", "activation", f"x{i}") for i, shape in enumerate(shapes)]
    recorder, reads = Recorder(), [(f"x{i}", None) for i in range(len(shapes))]
    recorder.op("op", op_type, OpCost("vector", 0.0, ()), "float32", reads, [(shapes[0], "float32")])
    in_table = in_terms_of_table(name, op_type, attributes, inputs, [shapes[0]])
    assert in_table is not None
    recorder.set_rule(*in_table)
    (op,) = recorder.ops
    assert op.rule is not None
    return op.rule[0]


def test_rows_of_causal_attention_are_whole() -> None:
    query = (2, 3, 4, 5)
    kinds = {}
    for is_causal in (False, True):
        rule = of_torch("scaled_dot_product_attention", "Attention", query, query, query, is_causal=is_causal)
        (place,) = rule.results[0][2]
        assert isinstance(place, int)
        kinds[is_causal] = rule.factors[place].kind
    assert kinds == {False: "parallel", True: "whole"}


def test_a_weight_of_channels_is_no_weight_of_the_last_axis() -> None:
    """ONNX's PReLU broadcasts from the last axis, PyTorch's is by channel."""
    rule = of_torch("prelu", "PRelu", (2, 4, 4, 4), (4,))
    assert rule.operands == (((0,), (1,), (2,), (3,)), ((1,), (), ()))


# ------------------------------------------------------------------ products


def is_weight(node: Node, weight: int) -> list[bool]:
    return [place == weight for place, one in enumerate(node.operands) if one is not None]


@pytest.mark.parametrize(
    ("op_type", "weight", "bias"),
    [
        ("MatMul", 1, None),
        ("Gemm", 1, 2),
        ("FusedGemm", 1, 2),
        ("DynamicQuantizeMatMul", 1, None),
        ("MatMulInteger", 1, None),
        ("QLinearMatMul", 3, None),
        ("MatMulNBits", 1, None),
        ("MatMulBnb4", 1, None),
        ("Conv", 1, 2),
        ("FusedConv", 1, 2),
        ("QLinearConv", 3, 8),
        ("ConvTranspose", 1, 2),
    ],
)
@pytest.mark.parametrize("weights", [True, False])
def test_products_have_the_flops_of_their_op(
    op_type: str, weight: int, bias: int | None, weights: bool
) -> None:
    seen = 0
    for node, rule, whole in nodes(op_type, 20):
        if "equation" in node.attributes or "layout" in node.attributes:
            continue
        shapes = tuple(
            None if one is None else node.stored.get(i, one.shape) for i, one in enumerate(node.operands)
        )
        outputs = tuple(one.shape for one in whole)
        flops = op_cost(OpSignature(op_type, shapes, outputs, node.attributes)).flops
        has_bias = bias is not None and bias < len(shapes) and shapes[bias] is not None
        product = product_of(rule, tuple(is_weight(node, weight if weights else -1)))
        if product != NO_PRODUCT and (product.inner > 1 or weight == 1):
            seen += 1
            assert 2 * np.prod(product) + whole[0].size * has_bias == flops, (node, rule)
    assert seen > 5


def test_products_of_einsums_have_their_flops() -> None:
    seen = 0
    for node, rule, whole in nodes("Einsum", 60):
        shapes = tuple(one.shape for one in node.operands if one is not None)
        product = product_of(rule, (False,) * len(shapes))
        if len(shapes) == 2 and product != NO_PRODUCT and product.inner > 1:
            seen += 1
            flops = op_cost(OpSignature("Einsum", shapes, (whole[0].shape,), node.attributes)).flops
            assert 2 * np.prod(product) == flops, (node, rule)
    assert seen > 5


def test_a_product_has_its_sizes() -> None:
    rule = rule_of(OpSignature("MatMul", ((2, 3, 4), (4, 5)), ((2, 3, 5),), {}))
    assert rule is not None
    assert product_of(rule, (False, True)) == Product(1, 6, 4, 5)
    batched = rule_of(OpSignature("MatMul", ((2, 3, 4), (2, 4, 5)), ((2, 3, 5),), {}))
    assert batched is not None
    assert product_of(batched, (False, False)) == Product(2, 5, 4, 3)
    image, weight, result = (2, 6, 8, 8), (9, 2, 3, 3), (2, 9, 6, 6)
    grouped = rule_of(OpSignature("Conv", (image, weight), (result,), {"group": 3}))
    assert grouped is not None
    assert product_of(grouped, (False, True)) == Product(1, 72, 18, 9)
    query = (2, 4, 3, 8)
    attention = rule_of(OpSignature("Attention", (query, query, query), (query,), {}))
    assert attention is not None
    assert product_of(attention, (False,) * 3) == NO_PRODUCT


# ------------------------------------------------------------------ faults of rules

PRODUCT: Final = Rule(
    (Factor("i", "parallel", 2), Factor("k", "reduction", 3), Factor("j", "parallel", 4)),
    (((0,), (1,)), ((1,), (2,))),
    (((0,), (2,)),),
)


def kind(place: int, name: Any, size: Any = 5) -> Rule:
    factors = list(PRODUCT.factors)
    factors[place] = Factor("x", name, size)
    return PRODUCT._replace(factors=tuple(factors))


def window(factor: int = 0, **changes: Any) -> Rule:
    """A window of three over the first operand."""
    piece = Affine(factor, 1, 1, 1, 1, 2)._replace(**changes)
    factors = (Factor("y", "window", 2), Factor("k", "reduction", 3))
    return Rule(factors, (((piece,),), ((1,),)), (((0,),),))


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        (kind(0, "sharded"), "the kind of factor 'x' must be one of"),
        (kind(0, "parallel", 1), "the size of factor 'x' must be a whole number of at least 2"),
        (kind(0, "parallel", 2.0), "the size of factor 'x' must be a whole number of at least 2"),
        (PRODUCT._replace(factors=(PRODUCT.factors[0],) * 3), "two factors have the same name"),
        (PRODUCT._replace(results=(((0,), (3,)),)), "names a factor that the rule does not have"),
        (PRODUCT._replace(results=(((0,), (NO_FACTOR,)),)), "names a factor that the rule does not have"),
        (PRODUCT._replace(results=(((0,), (2, 0)),)), "a factor occurs twice"),
        (window(stride=0), "stride, dilation and size"),
        (window(dilation=1.5), "stride, dilation and size"),
        (window(size=0), "stride, dilation and size"),
        (window(before=0.5), "the padding of a window"),
        (window(factor=1), "a factor occurs twice"),
        (window()._replace(results=(((Affine(0, NO_FACTOR, 1, 1, 0, 2),),),)), "a result cannot be read"),
        (kind(0, "reduction"), "the reduction 'x' must be over operands"),
        (PRODUCT._replace(operands=(((0,), ()), ((), (2,)))), "the reduction 'k' must be over operands"),
        (kind(1, "parallel"), "factor 'x' must be in every result"),
        (kind(1, "window"), "factor 'x' must be in every result"),
        (PRODUCT._replace(results=(((0,), (2,)), ((0,),))), "factor 'j' must be in every result"),
        (
            window()._replace(factors=(Factor("y", "parallel", 2), Factor("k", "reduction", 3))),
            "factor 'y' must be a window",
        ),
    ],
)
def test_a_wrong_rule_is_refused(rule: Rule, fault: str) -> None:
    assert fault in fault_of(rule)


def test_a_sum_over_an_operand_that_is_left_out_is_not_divided() -> None:
    rule = rule_of(OpSignature("Einsum", ((2, 3), (3, 4)), ((4,),), {"equation": "ij,jk->k"}))
    assert rule is not None
    kinds = {factor.name: factor.kind for factor in rule.of_operands([1]).factors}
    assert kinds == {"i": "whole", "j": "reduction", "k": "parallel"}
    assert fault_of(rule.of_operands([1])) == ""


def test_right_rules_are_not_refused() -> None:
    assert fault_of(PRODUCT) == fault_of(window()) == fault_of(kind(1, "whole")) == ""
