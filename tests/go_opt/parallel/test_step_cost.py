"""Training steps of models of repeated blocks: sizes, seconds and bytes by hand; the command's answer."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from go_opt import api
from go_opt.env import Target, load_target, parse_target, target_text
from go_opt.errors import InvalidInputError, TargetError
from go_opt.parallel import Case, Configuration, Machine, Transformer, cost_step, parse_transformer
from go_opt.parallel.search import configurations
from go_opt.parallel.step import pipeline_s
from tests.benchmarks.bench_vtrain import megatron, our_s, read

GPT3 = Transformer(12288, 96, 96, 2048)
TABLE = 51200 * 12288


@cache
def machine(name: str = "dgx-a100-512") -> Machine:
    return Machine(load_target(name))


def gpt3(batch: int = 1536) -> Case:
    return Case(GPT3, machine(), batch)


def test_parameters() -> None:
    assert GPT3.parameters == 96 * 12 * 12288**2 + TABLE  # 174.6 billion
    grouped = parse_transformer(
        "gpt:hidden=4096,layers=32,heads=32,kv_heads=8,mlp=14336,gated=on,sequence=8192,vocabulary=128256"
    )
    # Llama 3 8B without its second table: q and o, k and v, three products of the MLP.
    assert grouped.attention_parameters == 2 * 4096**2 + 2 * 4096 * 1024
    assert grouped.mlp_parameters == 3 * 4096 * 14336
    mixture = replace(grouped, experts=8, experts_per_token=2)
    assert mixture.mlp_parameters == 8 * grouped.mlp_parameters


def test_seconds_of_a_pipeline() -> None:
    assert pipeline_s([2.0, 2.0, 2.0, 2.0], 8, 1) == (8 + 4 - 1) * 2.0
    assert pipeline_s([1.0, 3.0], 4, 1) == 3 * 3.0 + 4.0
    assert pipeline_s([2.0, 2.0], 4, 2) == 4 * 2.0 + 2.0 / 2  # the bubble is half of (p - 1) ranks


def test_terms_are_the_step() -> None:
    step = cost_step(gpt3(), "tensor=8,pipeline=8,data=8")
    layer_s, m = step.block.layer_s[2], 192
    rank_s = [12 * layer_s] * 7 + [12 * layer_s + step.block.head_s]
    once_s = step.case.sums(step.chosen).all_s + step.case.optimizer_s(step.chosen)
    sent_s = step.case.message_s(step.chosen)
    expected_s = (m - 1) * rank_s[-1] + sum(rank_s) + (m + 6) * 2 * sent_s + once_s
    assert step.step_s == pytest.approx(expected_s)
    assert step.step_s == pytest.approx(sum(step.terms_s.values()))
    assert all(seconds >= 0 for seconds in step.terms_s.values())
    # A layer's input, 2 x 2048 x 12288 bytes, at an eighth of a node's 80 GB/s and 5 us.
    assert sent_s == pytest.approx(2 * 2048 * 12288 / 10e9 + 5e-6)


def test_the_reduction_shares_the_network_of_a_node() -> None:
    chosen = Configuration(8, 8, 8)
    gradient_bytes = 2 * GPT3.parameters / 64
    # A ring of eight, seven steps each way; eight tensor ranks of a node share its 80 GB/s.
    ring_s = 2 * (7 / 8 * gradient_bytes / 10e9 + 7 * 5e-6)
    assert gpt3().sums(chosen).all_s == pytest.approx(ring_s)
    assert gpt3().sums(replace(chosen, zero=1)).all_s == pytest.approx(ring_s)
    thirds = gpt3().sums(replace(chosen, zero=3)).all_s / ring_s
    assert thirds == pytest.approx((192 + 2 * 192) / 2)  # in each micro-batch: gathered twice, reduced once
    assert gpt3().sums(Configuration(8, 64)).all_s == 0.0


def test_bytes_of_a_layer() -> None:
    """Those of Korthikanti et al. (2022): s b h (10 + 24 / t + 5 a s / (h t)) and its variants."""
    sbh, scores = 2048 * 12288, 5 * 96 * 2048 / 12288
    kept = gpt3().block(Configuration(8, 8, 8)).kept_bytes
    assert kept == pytest.approx((sbh * (10 + 24 / 8 + scores / 8), sbh * (10 + 24 / 8), sbh * 2))
    divided = gpt3().block(Configuration(8, 8, 8, sequence_parallel=True)).kept_bytes
    assert divided == pytest.approx((sbh / 8 * (34 + scores), sbh / 8 * 34, sbh / 8 * 2))


def test_bytes_of_states() -> None:
    chosen, layers = Configuration(8, 8, 8), 12 * 12 * 12288**2 / 8
    assert gpt3().state_bytes(chosen, 12, is_end=False) == 16 * layers
    assert gpt3().state_bytes(chosen, 12, is_end=True) == 16 * (layers + TABLE / 8)
    for zero, each in ((1, 4 + 12 / 8), (2, 2 + 14 / 8), (3, 16 / 8)):
        assert gpt3().state_bytes(replace(chosen, zero=zero), 12, is_end=False) == each * layers


def test_micro_batches_in_flight() -> None:
    chosen = Configuration(8, 8, 8)
    assert [chosen.in_flight(rank, 1536) for rank in (0, 7)] == [8, 1]
    assert chosen.in_flight(0, 32) == 4  # there are no more
    assert replace(chosen, schedule="gpipe").in_flight(7, 1536) == 192
    turns = replace(chosen, schedule="interleaved", stages_per_device=4)
    assert turns.in_flight(0, 1536) == (2 * 7 + 3 * 8 + 1) / 4


def test_recomputation_trades_seconds_for_bytes() -> None:
    steps = [cost_step(gpt3(), f"tensor=8,pipeline=8,data=8,recompute={kind}") for kind in KINDS]
    seconds, used = [step.step_s for step in steps], [max(step.memory_bytes) for step in steps]
    assert seconds == sorted(seconds)
    assert used == sorted(used, reverse=True)
    assert [bool(step.lacks) for step in steps] == [True, False, False]


KINDS = ("none", "attention", "full")


def test_the_host_bounds_small_layers() -> None:
    case = Case(Transformer(1024, 24, 16, 1024), machine("dgx-a100-2"), 16)
    step = cost_step(case, "pipeline=2,micro_batch=1")
    assert step.block.layer_s[2] == pytest.approx(3.5e-3)
    assert cost_step(case, "pipeline=2,host_s_per_layer=0").step_s < step.step_s


def test_experts_are_divided() -> None:
    model = replace(GPT3, layers=8, experts=8, experts_per_token=2, mlp=12288)
    case = Case(model, machine("dgx-a100-64"), 64)
    whole, divided = cost_step(case, "tensor=8,data=8"), cost_step(case, "tensor=8,expert=8")
    assert max(divided.memory_bytes) < max(whole.memory_bytes)
    assert divided.terms_s["reduction_s"] < whole.terms_s["reduction_s"]
    assert divided.terms_s["collectives_s"] > whole.terms_s["collectives_s"]


def test_layers_that_the_ranks_do_not_divide() -> None:
    case = Case(Transformer(1024, 10, 16, 1024), machine("dgx-a100-4"), 16)
    assert [sum(layers) for layers in cost_step(case, "pipeline=4").layers] == [2, 3, 3, 2]


def test_measured_steps_of_many_nodes() -> None:
    rows = read("multi_node")
    errors = [abs(our_s(row.case, row.chosen) / row.measured_s - 1) for row in rows]
    assert np.mean(errors) < 0.08  # measured: 7.2 %
    assert np.mean(np.abs(megatron(our_s))) < 0.04  # 3.3 %


def test_measured_steps_of_one_node() -> None:
    rows = read("single_node")[::6]
    errors = [abs(our_s(row.case, row.chosen) / row.measured_s - 1) for row in rows]
    assert np.mean(errors) < 0.08  # of all rows: 6.8 %


def test_clusters_of_any_size() -> None:
    small, large = load_target("dgx-h100-3"), load_target("dgx-h100-100")
    assert (small.num_chips, small.num_devices) == (3, 3)
    assert (large.num_chips, large.num_devices) == (8, 100)
    assert large.kinds[0].kernels == load_target("h100-sxm-8").kinds[0].kernels
    slow = Case(GPT3, machine("ethernet-a100-512"), 1536)
    chosen = Configuration(8, 8, 8)
    assert slow.sums(chosen).all_s > 7 * gpt3().sums(chosen).all_s
    for name in ("dgx-a100-0", "dgx-a100-08", "dgx-b200-8", "dgx-a100-100000"):
        with pytest.raises(TargetError, match="unknown target"):
            load_target(name)


def target_with(levels: str) -> Target:
    whole = target_text("dgx-a100-8")
    return parse_target(whole[: whole.index("[[levels]]")] + levels, "mine")


LEVEL = '[[levels]]\nname = "node"\nsize = {}\nrate_bytes_per_s = 1e9\nlatency_s = 0.0\n'


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ((4,), r"levels\[0\]\.size must be the number of chips, 8, not 4"),
        ((8, 4), r"levels\[1\]\.size must be 8 to"),
        ((8, 16, 32), "3 are given"),
    ],
)
def test_levels_that_are_wrong(sizes: tuple[int, ...], problem: str) -> None:
    assert target_with(LEVEL.format(8) + LEVEL.format(16)).num_devices == 16
    with pytest.raises(TargetError, match=problem):
        target_with("".join(map(LEVEL.format, sizes)))


def test_several_nodes_are_for_steps_alone() -> None:
    with pytest.raises(TargetError, match="several nodes"):
        api.optimize("zoo:resnet50", "dgx-a100-16", max_evaluations=1)


def test_a_target_without_levels() -> None:
    with pytest.raises(TargetError, match="'gpu-8' has no levels"):
        machine("gpu-8")


@pytest.mark.parametrize(
    ("text", "field", "problem"),
    [
        ("hidden=64,layers=2,heads=4", "sequence", "sequence is missing"),
        ("hidden=64,layers=2,heads=5,sequence=8", "heads", "heads=5 does not divide hidden=64"),
        ("hidden=64,layers=0,heads=4,sequence=8", "layers", "layers must be 1 or more"),
        ("hidden=64,layers=2,heads=4,sequence=8,seq=8", "seq", "'seq=8' must be one of"),
        ("hidden=64,hidden=64,layers=2,heads=4,sequence=8", "hidden", "given twice"),
        ("hidden=64,layers=two,heads=4,sequence=8", "layers", "a whole number"),
        ("hidden=64,layers=2,heads=4,sequence=8,gated=yes", "gated", "one of on, off"),
        ("hidden=64,layers=2,heads=4,sequence=8,experts_per_token=2", "experts_per_token", "above experts=1"),
    ],
)
def test_models_that_are_wrong(text: str, field: str, problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem) as raised:
        parse_transformer(f"gpt:{text}")
    assert raised.value.field == field


def test_heads_of_keys_are_divided_or_repeated() -> None:
    case = Case(Transformer(1536, 4, 24, 1001, kv_heads=6), machine("dgx-a100-4"), 4)
    with pytest.raises(InvalidInputError, match="tensor=4 does not divide kv_heads=6"):
        cost_step(case, "tensor=4")
    with pytest.raises(InvalidInputError, match="tensor=2 does not divide sequence=1001"):
        cost_step(case, "tensor=2,data=2,sequence_parallel=on")
    assert cost_step(replace(case, model=replace(case.model, kv_heads=2)), "tensor=4").step_s > 0
    degrees = {(one.tensor, one.sequence_parallel) for one in configurations(case)}
    assert degrees == {(1, False), (2, False)}


@pytest.mark.parametrize(
    ("text", "field", "problem"),
    [
        ("tensor=8,pipeline=8,data=7", "tensor", "is 448 devices of 512"),
        ("tensor=5", "tensor", "is 5 devices of 512"),
        ("tensor=0", "tensor", "tensor must be 1 or more"),
        ("tensor=64,data=8", "tensor", "tensor=64 does not divide heads=96"),
        ("pipeline=128,data=4", "pipeline", "128 stages are more than layers=96"),
        ("tensor=8,data=64,micro_batch=5", "micro_batch", "does not divide batch=1536"),
        ("tensor=8,data=8,expert=8", "expert", "expert=8 does not divide experts=1"),
        ("tensor=8,pipeline=8,data=8,stages_per_device=2", "stages_per_device", "schedule=interleaved"),
        ("tensor=8,pipeline=8,data=8,schedule=interleaved", "stages_per_device", "2 or more"),
        ("tensor=8,pipeline=8,data=8,zero=4", "zero", "one of 0, 1, 2, 3"),
        ("tensor=8,pipeline=8,data=8,host_s_per_layer=x", "host_s_per_layer", "seconds"),
        ("tensor=8,pipeline=8,data=8,schedule=zigzag", "schedule", "one of 1f1b, gpipe, interleaved"),
    ],
)
def test_configurations_that_are_wrong(text: str, field: str, problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem) as raised:
        cost_step(gpt3(), text)
    assert raised.value.field == field
