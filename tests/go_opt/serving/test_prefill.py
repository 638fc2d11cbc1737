"""Prompts beside steps or apart: shared weights, plans of both, and the choice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

import go_opt
from go_opt.env import evaluate_plan
from go_opt.env.copies.splits import planned_graph
from go_opt.errors import InfeasibleError, InvalidInputError
from go_opt.frontends.union.graphs import content, matched_by_order, shared_weights, union, union_name
from go_opt.model.graph import WEIGHT
from go_opt.result import Request
from go_opt.serving.rate.planning import RateRequest
from go_opt.serving.rate.prefill import Case, place, plan_prefill, prompt_beside, shifted
from tests.decoders import PRODUCTS, decoder, prompt_of


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("models")
    step = decoder(heads=4, width=8)
    onnx.save(prompt_of(step), folder / "prompt.onnx")
    onnx.save(step, folder / "step.onnx")
    return str(folder / "prompt.onnx"), str(folder / "step.onnx")


@pytest.fixture(scope="module")
def case(files: tuple[str, str]) -> Case:
    prompt, step = map(go_opt.load, files)
    both = go_opt.load(union_name(files, is_shared=True))
    return Case(prompt, step, both, go_opt.target("mcm-2x2"))


def test_content_is_that_of_the_elements() -> None:
    array = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    assert content(array) == content(array.T) == content(array.reshape(4, 6))
    other = array.copy()
    other[1, 2] += 1e-6
    assert content(other) != content(array)
    assert content(array.astype(np.float64)) != content(array)
    assert content(np.zeros(3, np.float32)) != content(np.zeros(4, np.float32))


def test_weights_are_matched_by_content(case: Case, files: tuple[str, str]) -> None:
    assert dict(case.shared) == shared_weights(case.prompt, case.step, *files)
    names = {case.step.tensor_names[s]: case.prompt.tensor_names[p] for s, p in case.shared.items()}
    products = {f"{i}.{part}": f"val_{i}_{part}" for i in range(2) for part in PRODUCTS}
    assert names == products | {"table": "vocabulary"}
    weights = [int((graph.tensor_kind == WEIGHT).sum()) for graph in (case.prompt, case.step, case.both)]
    assert weights[2] == weights[0] + weights[1] - 13
    for number, graph in ((1, case.prompt), (2, case.step)):
        for op in range(graph.num_ops):
            found = case.both.op_index[f"{number}/{graph.op_names[op]}"]
            read = sorted(int(case.both.tensor_elements[k]) for k, _ in case.both.reads_of(found))
            assert read == sorted(int(graph.tensor_elements[k]) for k, _ in graph.reads_of(op))


def test_without_values_by_order() -> None:
    """All weights of the zoo's prompts and steps but masks and positions, whose sizes differ."""
    for prompt, step in (("gpt2", "gpt2_step"), ("smollm2_360m_prefill", "smollm2_360m_step")):
        graphs = [go_opt.load(f"zoo:{name}") for name in (prompt, step)]
        shared = matched_by_order(*graphs)
        weights = graphs[1].tensor_elements[graphs[1].tensor_kind == WEIGHT].sum()
        assert graphs[1].tensor_elements[list(shared)].sum() > 0.999 * weights
        assert len(set(shared.values())) == len(shared)
        for ours, others in shared.items():
            assert graphs[1].tensor_elements[ours] == graphs[0].tensor_elements[others]


def few(**more: object) -> Request:
    return replace(Request(max_evaluations=10, policy=None, simulate=False, replication=False), **more)


def test_beside_holds_weights_once(case: Case) -> None:
    step = go_opt.optimize(case.step, case.target, request=few(sequences=2)).plan
    graph, splits, pins = prompt_beside(case, step)
    assert sum(len(pin.ops) for pin in pins) == 13
    prompt = go_opt.optimize(graph, case.target, request=few(constraints=tuple(pins))).plan
    found = place(case, prompt, step, 0, 16.0)
    assert not splits
    assert go_opt.verify(case.both, case.target, found.plan) == []
    alone = [
        evaluate_plan(planned_graph(one, plan), case.target, plan)
        for one, plan in ((case.prompt, prompt), (case.step, step))
    ]
    assert found.metrics.compute_s == pytest.approx(alone[0].compute_s + alone[1].compute_s)
    shared = case.shared_bytes[0]
    assert (
        shared == (2 * 12 * 32 * 32 + 50 * 32) * 2
    )  # 4 + 4 + 4 squares of 32 in each of 2 layers; 50 tokens
    saved = sum(int(one.weight_bytes.sum()) for one in alone) - int(found.metrics.weight_bytes.sum())
    assert saved >= shared
    assert found.handover_s == 0.0  # the states lie where their weights do
    assert found.passes.hold_s[0].sum() == pytest.approx(alone[0].compute_s.sum() + alone[0].link_s.sum())


def test_apart_sends_states_over_links(case: Case) -> None:
    on = case.target
    prompt = go_opt.optimize(case.prompt, go_opt.env.target.first_chips(on, 1), request=few()).plan
    step = go_opt.optimize(case.step, go_opt.env.target.first_chips(on, 3), request=few(sequences=2)).plan
    found = place(case, replace(prompt, target_fingerprint=on.fingerprint), shifted(case, step, 1), 1, 16.0)
    assert found.plan.placement[case.both.op_index["1/0.q"]] == 0
    assert found.plan.placement[case.both.num_ops - case.step.num_ops :].min() == 1
    # Keys and values of 4 tokens of 2 layers, 32 each of 2 bytes, over the link from chip 0 at 16 GB/s.
    assert found.handover_s == pytest.approx(4 * 2 * 2 * 32 * 2 / 16e9)
    assert (found.passes.hold_s[0] * found.passes.hold_s[2])[~found.passes.is_link].max() == 0.0


def test_the_choice(case: Case) -> None:
    found = plan_prefill(
        case.prompt, case.step, case.both, case.target, few(), RateRequest(50_000.0, tokens=16.0)
    )
    assert found.beside is not None
    assert found.apart is not None
    for way in (found.beside, found.apart):
        assert way.capacity_per_s <= found.bound_per_s * (1 + 1e-9)
        assert go_opt.verify(case.both, case.target, way.plan) == []
        for one in way.answered.values():
            assert one.first_s >= way.passes.move_s[0].sum() * 0.999
            assert one.last_s >= one.first_s
    assert found.best.last_s == min(found.beside.last_s, found.apart.last_s)
    late = replace(found, asked=RateRequest(50_000.0, 1e-9, tokens=16.0))
    with pytest.raises(InfeasibleError, match="in time"):
        _ = late.best


def test_what_is_refused(case: Case) -> None:
    with pytest.raises(InvalidInputError, match="--prefill is for a step"):
        replace(case, step=case.prompt)
    both = union([case.prompt, case.step], [1, 1], "both", case.prompt.bindings)
    assert both.num_tensors == case.both.num_tensors + 13
