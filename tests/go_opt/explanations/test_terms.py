"""The terms of an interval taken apart: by hand, and their parts against what the model sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.explanations.terms import Place, TensorPart, terms_of
from go_opt.model.plan import Relay
from tests.strategies import (
    examples,
    kind_names,
    make_plan,
    random_graph,
    random_plan,
    random_target,
    seeds,
    small_mcm,
    toy_graph,
)

# --------------------------------------------------------------------------- by hand


def test_kernels_of_a_chip_and_what_binds_each() -> None:
    graph, target = toy_graph(), small_mcm(2)
    terms = terms_of(graph, target, make_plan(graph, target, [0, 0, 0, 0, 1, 1]))
    chip = terms.term(0)
    assert (chip.name, chip.tensors) == ("chip 0 compute", ())
    assert chip.seconds == pytest.approx(23.4e-6)
    assert [(kernel.ops, kernel.bound_by) for kernel in chip.kernels] == [
        (("dense",), "compute"),  # 9.0 us
        (("relu",), "compute"),  # 6.0 us
        (("mix",), "SRAM"),  # 5.0 us: 4 us of traffic, 2 us of compute
        (("embed",), "SRAM"),  # 3.4 us
    ]
    mix = chip.kernels[2]
    assert (mix.moved_bytes, mix.flops) == (4000, 2000)
    assert (mix.compute_s, mix.sram_s, mix.overhead_s) == pytest.approx((2e-6, 4e-6, 1e-6))


def test_tensors_of_links_and_of_the_host() -> None:
    graph, target = toy_graph(), small_mcm(3, triangle="off")
    terms = terms_of(graph, target, make_plan(graph, target, [0, 1, 1, 1, 2, 2]))
    x = TensorPart(
        "x", "activation", "link 0->1", 1000, 1e-5, Place("embed", 0), (Place("dense", 1), Place("add", 2))
    )
    assert terms.term(3).tensors == (x,)
    # On the second link x goes on to add alone.
    further = replace(x, link="link 1->2", readers=(Place("add", 2),))
    s = TensorPart("s", "activation", "link 1->2", 1000, 1e-5, Place("mix", 1), (Place("add", 2),))
    assert terms.link(1) == (further, s)
    assert terms.term(3 + 3).tensors == (
        TensorPart("ids", "input", "host in", 400, 2e-6, None, (Place("embed", 0),)),
    )
    assert terms.term(3 + 4).tensors == (
        TensorPart("out", "output", "host out", 2000, 1e-5, Place("logits", 2), ()),
    )


def test_weights_that_stream_load_the_host() -> None:
    graph, target = toy_graph(), small_mcm(1, sram_bytes=10_000)
    terms = terms_of(graph, target, make_plan(graph, target, [0] * 6))
    # 7800 bytes of activations leave room for w2 and 200 bytes of w1; all of the table is touched.
    streamed = {part.tensor: part.size_bytes for part in terms.streamed(0)}
    assert streamed == {"table": 10_000, "w1": 1800}
    assert [part.tensor for part in terms.term(1).tensors] == ["table", "w1", "ids"]


def test_a_chip_that_pays_for_transfers() -> None:
    graph, target = toy_graph(), small_mcm(2, overlap=False)
    terms = terms_of(graph, target, make_plan(graph, target, [0, 0, 0, 0, 1, 1]))
    chip = terms.term(1)
    assert chip.name == "chip 1 compute and transfers"
    # 20 us of kernels, x and s in for 20 us, out for 10 us.
    assert chip.seconds == pytest.approx(50e-6)
    assert {(part.tensor, part.link) for part in chip.tensors} == {
        ("out", "host out"),
        ("x", "link 0->1"),
        ("s", "link 0->1"),
    }
    in_order = [part.seconds for part in chip.tensors]
    assert in_order == sorted(in_order, reverse=True)


def test_relays_go_by_the_names_of_what_they_copy() -> None:
    graph, target = toy_graph(), small_mcm(3, triangle="adjacent")
    plan = replace(make_plan(graph, target, [0, 1, 1, 1, 2, 2]), relays=(Relay("x", (1,)),))
    terms = terms_of(graph, target, plan)
    assert [kernel.ops for kernel in terms.kernels(1)][-1] == ("x/relay 1",)
    far = next(part for part in terms.link(1) if part.tensor == "x")
    assert (far.source, far.readers) == (Place("embed", 0), (Place("add", 2),))
    near = terms.link(0)[0]
    assert set(near.readers) == {Place("dense", 1), Place("add", 2)}


# --------------------------------------------------------------------------- at random


@settings(max_examples=examples(150))
@given(seeds)
def test_the_parts_add_up_to_the_terms_of_the_model(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng)
    graph = random_graph(rng, int(rng.integers(1, 25)), kinds=kind_names(target))
    plan = random_plan(rng, graph, target)
    terms = terms_of(graph, target, plan)
    metrics = terms.metrics
    assert terms.loads.kernel_s.sum() == pytest.approx(metrics.compute_s.sum())
    for chip in range(target.num_chips):
        kernels = terms.kernels(chip)
        assert sum(kernel.seconds for kernel in kernels) == pytest.approx(metrics.compute_s[chip])
        assert sum(part.size_bytes for part in terms.streamed(chip)) == metrics.stream_bytes[chip]
    for link in range(len(metrics.link_s)):
        assert sum(part.seconds for part in terms.link(link)) == pytest.approx(metrics.link_s[link])
    total_s = terms.total_s()
    assert total_s.max() == pytest.approx(metrics.interval_s)
    binding = target.bottleneck_name(int(np.argmax(total_s)))
    assert binding == metrics.bottleneck or np.isclose(total_s, total_s.max()).sum() > 1
    for index in np.flatnonzero(total_s):
        term = terms.term(int(index))
        parts_s = sum(kernel.seconds for kernel in term.kernels) + sum(part.seconds for part in term.tensors)
        assert term.seconds == pytest.approx(parts_s) == pytest.approx(total_s[index])
