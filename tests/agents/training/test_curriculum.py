"""What is drawn to learn on: repeatable, of one bucket, and sound targets."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.agents.generator import generate_graph
from go_opt.agents.inputs.padding import Bucket, pad
from go_opt.agents.training.problems.cases import (
    MOST_CHIPS,
    Case,
    Curriculum,
    Variation,
    case,
    common_bucket,
    same_size,
    varied_target,
)
from go_opt.env import Target, evaluate_plan, load_target
from go_opt.errors import InvalidInputError
from go_opt.model.graph import Graph
from go_opt.solver.verify.verifier import verify
from tests.agents.training.small import small_case
from tests.strategies import JIT_IS_ON, chip_kind, examples, make_plan, small_mcm, toy_graph

MOST_OPS = 600


@lru_cache
def known_graphs() -> tuple[Graph, ...]:
    """Of two buckets."""
    return tuple(generate_graph(seed, num_ops=size) for seed, size in enumerate((60, 300, 550)))


def curriculum(**changes: float) -> Curriculum:
    return Curriculum(known_graphs(), load_target("mcm-6x6"), **{"most_ops": MOST_OPS} | changes)  # type: ignore[arg-type]


def told(cases: list[Case]) -> list[tuple[str, str]]:
    """What sets cases apart."""
    return [(each.instance.graph.fingerprint, each.instance.target.fingerprint) for each in cases]


def test_draws_follow_from_seed_and_step_alone() -> None:
    drawn = curriculum()
    first, bucket = drawn.draw(3, 5, 2)
    drawn.draw(3, 6, 2)
    again, same_bucket = curriculum().draw(3, 5, 2)
    assert told(again) == told(first)
    assert same_bucket == bucket
    assert [each.reference_s for each in again] == [each.reference_s for each in first]
    for seed, step in ((3, 6), (4, 5)):
        assert told(drawn.draw(seed, step, 2)[0]) != told(first)
    # Asking for more changes nothing about the first graph.
    assert drawn.draw(3, 5, 1)[0][0].instance.graph.name == first[0].instance.graph.name


def test_graphs_of_a_step_are_of_one_size_and_fit_the_bucket() -> None:
    sizes = set()
    for step in range(12 if JIT_IS_ON else 2):
        cases, bucket = curriculum().draw(0, step, 3)
        assert len(cases) == 3
        same = same_size(cases[0].features.num_ops, MOST_OPS)
        sizes.add(bucket.ops)
        for each in cases:
            assert each.features.num_ops in same
            assert each.features.num_ops <= bucket.ops < 2 * max(each.features.num_ops, 257)
            assert pad(each.features, bucket).ops.shape[0] == bucket.ops
            assert each.instance.target.num_chips <= MOST_CHIPS
    assert len(sizes) > 1 or not JIT_IS_ON


def test_shares() -> None:
    names = {graph.name for graph in known_graphs()}
    for step in range(5):
        (only_known,), _ = curriculum(generated_share=0.0, plain_share=1.0).draw(0, step, 1)
        assert only_known.instance.graph.name in names
        assert only_known.instance.target == load_target("mcm-6x6")
        (generated,), _ = curriculum(generated_share=1.0, plain_share=0.0).draw(0, step, 1)
        assert generated.instance.graph.name not in names
        assert generated.instance.target.fingerprint != load_target("mcm-6x6").fingerprint


def test_without_graphs_all_must_be_generated() -> None:
    Curriculum((), load_target("mcm-6x6"), generated_share=1.0)
    with pytest.raises(InvalidInputError, match="no graphs are given"):
        Curriculum((), load_target("mcm-6x6"))


@given(num_ops=st.integers(50, 5000), most_ops=st.integers(50, 4096))
def test_sizes_that_share_a_bucket(num_ops: int, most_ops: int) -> None:
    same = same_size(num_ops, most_ops)
    assert num_ops in same
    largest = max(128, 1 << (num_ops - 1).bit_length())
    assert same.start == (50 if largest == 128 else largest // 2 + 1)
    assert same.stop - 1 == max(num_ops, min(largest, most_ops))


def test_common_bucket_by_hand() -> None:
    """Small graphs share one bucket: 128 ops, twice as many edges."""
    assert common_bucket([small_case(0), small_case(1)]) == Bucket(128, 256)
    large = case(generate_graph(0, num_ops=600), load_target("mcm-2x2"))
    assert common_bucket([small_case(0), large]) == Bucket(1024, 2048)


factors = st.floats(0.25, 4.0)
variations = st.builds(Variation, st.integers(1, 64), factors, factors, st.floats(0.7, 2.0))


def rates(target: Target) -> tuple[float, float, float]:
    kind = target.kinds[0]
    return kind.matrix_flops_per_s["bfloat16"], kind.vector_flops_per_s["default"], float(kind.sram_bytes)


@settings(max_examples=examples(50))
@given(variation=variations, topology=st.sampled_from(["ring", "chain"]))
def test_varied_rings(variation: Variation, topology: str) -> None:
    plain = small_mcm(3, topology=topology)
    varied = varied_target(plain, variation)
    assert varied.num_chips == varied.topology.num_chips == variation.chips
    assert len(varied.chip_kind) == len(varied.chip_sram_bytes) == variation.chips
    num_links = variation.chips if topology == "ring" and variation.chips > 1 else variation.chips - 1
    assert varied.topology.num_links == num_links
    np.testing.assert_allclose(varied.topology.rate_bytes_per_s, 1e8 * variation.link_rate)
    np.testing.assert_allclose(varied.topology.latency_s, 1e-6)
    expected = np.array(rates(plain)) * [variation.compute_rate, variation.compute_rate, variation.sram]
    np.testing.assert_allclose(rates(varied), expected, atol=1.0)
    assert len(varied.link_names) == num_links + 2
    assert varied.fingerprint != plain.fingerprint
    assert varied.fingerprint == varied_target(plain, variation).fingerprint
    # x and a, 1000 bytes each, cross one link; 1 us of latency is not waited for.
    graph, second = toy_graph(), min(1, variation.chips - 1)
    plan = make_plan(graph, varied, [0, 0, 0, second, second, second])
    assert not verify(graph, varied, plan)
    metrics = evaluate_plan(graph, varied, plan)
    assert metrics.valid
    carried_s = 20e-6 / variation.link_rate if second else 0.0
    assert metrics.link_s[: varied.topology.num_links].max(initial=0.0) == pytest.approx(carried_s)


@pytest.mark.parametrize(
    "target",
    [
        small_mcm(4, topology="mesh2d"),
        small_mcm(3, topology="all_to_all"),
        small_mcm(1),
        small_mcm(kinds=[chip_kind("big", 2), chip_kind("small", 1)]),
    ],
    ids=["mesh", "all to all", "one chip", "two kinds"],
)
def test_other_packages_keep_their_chips(target: Target) -> None:
    varied = varied_target(target, Variation(chips=7, link_rate=2.0, compute_rate=0.5, sram=1.5))
    assert varied.num_chips == target.num_chips
    assert varied.topology.link_src == target.topology.link_src
    np.testing.assert_allclose(varied.topology.rate_bytes_per_s, 2 * target.topology.rate_bytes_per_s)
    assert {kind.matrix_flops_per_s["bfloat16"] for kind in varied.kinds} == {5e8}
    graph = toy_graph()
    plan = make_plan(graph, varied, [0] * 6)
    assert not verify(graph, varied, plan)
    # At half the rates flops take 16, 10, 4, 10 and 20 us, bytes 2.4 in "embed"; a kernel 1 more.
    assert evaluate_plan(graph, varied, plan).compute_s[0] == pytest.approx(68.4e-6)


def test_cases_of_drawn_targets_have_references() -> None:
    for step in range(4 if JIT_IS_ON else 1):
        cases, _ = curriculum(plain_share=0.0, most_ops=100).draw(1, step, 2)
        for each in cases:
            assert 0.0 < each.reference_s < np.inf
            assert each.instance.tables.num_chips == each.instance.target.num_chips
            np.testing.assert_allclose(
                each.key_space.features[each.features.row_op], each.features.exploration
            )
