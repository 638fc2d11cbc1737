"""What holds of every run, whatever the plan: laws of conservation over the spans of what ran."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from go_opt.common.arrays import LongArray
from go_opt.env import Target
from go_opt.env.model.memory import FITS
from go_opt.env.simulator.assembly import Assembly
from go_opt.env.simulator.engine import DEADLOCK, run
from go_opt.env.simulator.package import CHIP_FLOW, HOST_OUT, NONE, STREAM
from go_opt.env.simulator.simulate import simulate_plan
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.solver import placement_problem, sample
from go_opt.solver.verify.verifier import verify
from tests.env.simulator.replicas import random_replicated
from tests.env.simulator.test_deadlock import detour
from tests.env.simulator.test_twin import assembled, with_room
from tests.strategies import (
    chip_kind,
    examples,
    make_plan,
    random_graph,
    random_order,
    random_plan,
    random_simulated_target,
    seeds,
    simulated_package,
    small_mcm,
    toy_graph,
)

ROUNDS = 12
NEVER = ROUNDS + 1
Times = dict[tuple[int, int], tuple[float, float]]  # (subject, inference) -> start, end


@dataclass
class Spans:
    """What ran, by resource."""

    stages: Times = field(default_factory=dict)
    legs: dict[int, Times] = field(default_factory=lambda: defaultdict(dict))  # by link, of flows
    chip_order: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    link_order: dict[int, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))


def spans_of(package) -> Spans:
    """Each span once: nothing runs, or crosses a link, twice."""
    spans = Spans()
    for row in package.spans[: int(package.shared["num_spans"][0])]:
        resource, key = int(row["resource"]), (int(row["subject"]), int(row["inference"]))
        times = float(row["start_s"]), float(row["end_s"])
        of_resource = spans.legs[resource] if row["is_link"] else spans.stages
        assert key not in of_resource
        of_resource[key] = times
        if row["is_link"]:
            spans.link_order[resource].append(times)
        else:
            spans.chip_order[resource].append(key)
    return spans


def check_laws(built: Assembly) -> None:
    package = built.package
    ended, _ = run(package, ROUNDS, NEVER)
    assert package.shared["num_spans"][0] < len(package.spans)
    spans = spans_of(package)
    if ended != DEADLOCK:
        check_all_ran(package, spans)
        check_in_order(package, spans)
    check_order(package, spans)
    slack_s = 1e-12 * max([end for _, end in spans.stages.values()], default=0.0)
    for number in range(len(package.flows)):
        check_flow(package, spans, number, slack_s)
    for number in range(len(package.deliveries)):
        check_buffers(package, spans, number, slack_s)


def check_all_ran(package, spans: Spans) -> None:
    """Every stage of every inference, and every tensor over every link of its way, once."""
    chips, flows, deliveries, links = package.chips, package.flows, package.deliveries, package.links
    assert len(spans.stages) == ((chips["stage_end"] - chips["stage_begin"]) * turns_of(chips)).sum()
    to_host = flows["kind"] != CHIP_FLOW
    crosses = to_host | (flows["size_bytes"] > 0)  # from chip to chip, what has no bytes crosses no link
    num_legs = sum(hop_turns(package, hop) for hop in package.hops if crosses[hop["flow"]])
    num_legs += turns_of(flows)[to_host].sum()
    assert sum(len(legs) for legs in spans.legs.values()) == num_legs
    assert (deliveries["arrived"] == turns_of(deliveries)).all()
    assert (deliveries["freed"] == turns_of(deliveries)).all()
    whole = ROUNDS % links["cycle"] == 0
    carried = ROUNDS // links["cycle"] * links["round_bytes"]
    assert (links["carried_bytes"][whole] == carried[whole]).all()


def turns_of(rows: NDArray) -> LongArray:
    """How many of the inferences are turns of chips, flows or deliveries."""
    return (ROUNDS - 1 - rows["replica"]) // rows["replicas"] + 1


def hop_turns(package, hop) -> int:
    """How many inferences of a flow come as far as a hop."""
    flow = package.flows[hop["flow"]]
    turns = range(flow["replica"], ROUNDS, flow["replicas"])
    return sum(inference % hop["readers"] >= hop["first_replica"] for inference in turns)


def check_in_order(package, spans: Spans) -> None:
    """Readers take the inferences of each stage in turn, and none runs on two chips."""
    ran = defaultdict(list)
    for stage, inference in spans.stages:
        ran[inference].append(int(np.searchsorted(package.chips["stage_end"], stage, side="right")))
    first = np.arange(len(package.chips)) - package.chips["replica"]
    for chips in ran.values():
        assert len({int(first[chip]) for chip in chips}) == len(set(chips))
    done_s = package.rounds["completion_s"]
    assert (np.diff(done_s) >= 0).all()


def check_order(package, spans: Spans) -> None:
    """Chips run their stages in order, one at a time; links carry one tensor at a time."""
    for chip, ran in spans.chip_order.items():
        begin, end = package.chips["stage_begin"][chip], package.chips["stage_end"][chip]
        turns = range(package.chips["replica"][chip], ROUNDS, package.chips["replicas"][chip])
        every = [(stage, inference) for inference in turns for stage in range(begin, end)]
        assert ran == every[: len(ran)]
        check_apart([spans.stages[key] for key in ran])
    for link, carried in spans.link_order.items():
        check_apart(carried)
        for (flow, _), (start_s, end_s) in spans.legs[link].items():
            seconds = package.flows["size_bytes"][flow] * package.links["s_per_byte"][link]
            np.testing.assert_allclose(end_s - start_s, seconds, rtol=1e-6, atol=1e-12 * end_s)


def check_apart(times: list[tuple[float, float]]) -> None:
    for (_, end_s), (start_s, _) in pairwise(times):
        assert start_s >= end_s


def stages_with(package, name: str) -> dict[int, int]:
    """The stage whose list ``name`` an item is in."""
    return {
        int(package.refs[i]): number
        for number, stage in enumerate(package.stages)
        for i in range(stage[f"{name}_begin"], stage[f"{name}_end"])
    }


def check_flow(package, spans: Spans, number: int, slack_s: float) -> None:
    """A tensor is made, then sent, then read, and none is written to a slot not yet free."""
    flow = package.flows[number]
    maker = stages_with(package, "makes").get(number)
    first_stage = stages_with(package, "needs")
    buffers = int(package.shared["buffers"][0])
    host_in = len(package.links) - 2
    sent = {key for legs in spans.legs.values() for key in legs}
    hops = package.hops[flow["hop_begin"] : flow["hop_end"]]
    for inference in range(ROUNDS):
        key = number, inference
        out_legs = [spans.legs[int(hop["link"])] for hop in hops if hop["parent"] == NONE]
        if flow["kind"] == HOST_OUT:
            out_legs = [spans.legs[len(package.links) - 1]]
        if flow["kind"] == CHIP_FLOW and flow["size_bytes"] == 0:
            out_legs = []  # handed over
        if maker is not None and (maker, inference) in spans.stages:
            made_from_s, made_s = spans.stages[maker, inference]
            for leg in out_legs:
                assert key not in leg or leg[key][0] >= made_s - slack_s
                # The slot it is written to: free since an earlier one left.
                before = number, inference - buffers * int(flow["replicas"])
                assert before[1] < 0 or leg[before][1] <= made_from_s + slack_s
        for hop in hops:
            link, parent = int(hop["link"]), int(hop["parent"])
            if parent != NONE and key in spans.legs[link]:
                came_s = spans.legs[int(package.hops["link"][parent])][key][0]
                assert spans.legs[link][key][0] >= came_s - slack_s
        for delivery in range(flow["delivery_begin"], flow["delivery_end"]):
            there = package.deliveries[delivery]
            if inference % there["replicas"] != there["replica"]:
                continue
            read = spans.stages.get((first_stage[delivery], inference)) if key in sent else None
            links = [int(hop["link"]) for hop in hops if hop["delivery"] == delivery] or [host_in]
            if read is not None:
                latency_s = float(package.links["latency_s"][links[0]])
                assert read[0] >= spans.legs[links[0]][key][1] + latency_s - slack_s
    if flow["kind"] == STREAM:
        check_stream(package, spans, number, slack_s)


def check_buffers(package, spans: Spans, number: int, slack_s: float) -> None:
    """No more of a tensor is live where it is read than there are buffers.

    With credit each inference takes its buffer once it leaves, in turn; else once it is on the last
    link, where those of several makers may overtake each other.
    """
    there, buffers = package.deliveries[number], int(package.shared["buffers"][0])
    last_stage = stages_with(package, "frees")[number]
    turns = range(int(there["replica"]), ROUNDS, int(there["replicas"]))
    taken = {turn: took_s(package, spans, number, turn) for turn in turns}
    if not there["has_credit"]:
        taken = dict(zip(turns, sorted(taken.values()), strict=True))
    for before, turn in zip(turns, turns[buffers:], strict=False):
        if taken[turn] < np.inf:
            assert taken[turn] >= spans.stages[last_stage, before][1] - slack_s


def took_s(package, spans: Spans, number: int, inference: int) -> float:
    """When an inference took its buffer at a delivery, infinite where it has not yet."""
    there = package.deliveries[number]
    maker = inference % int(there["makers"])
    flow = int(there["flow"]) + maker
    hops = package.hops[package.flows["hop_begin"][flow] : package.flows["hop_end"][flow]]
    if not len(hops):
        links = [len(package.links) - 2]
    elif there["has_credit"]:
        links = [int(hop["link"]) for hop in hops if hop["parent"] == NONE]
    else:
        links = [int(hop["link"]) for hop in hops if hop["delivery"] == number]
    return min(spans.legs[link].get((flow, inference), (np.inf,))[0] for link in links)


def check_stream(package, spans: Spans, number: int, slack_s: float) -> None:
    """A stage with weights that stream is through, and its chip goes on, once they are there."""
    (stage,) = (i for i, stage in enumerate(package.stages) if stage["stream"] == number)
    chip = int(package.flows["chip"][number])
    ran = spans.chip_order[chip]
    for key, following in pairwise(ran):
        if key[0] == stage:
            there_s = spans.legs[len(package.links) - 2][number, key[1]][1]
            assert spans.stages[following][0] >= there_s - slack_s


@given(seed=seeds)
@settings(max_examples=examples(80))
def test_laws_hold_of_replicated_stages(seed: int) -> None:
    graph, target, plan = random_replicated(np.random.default_rng(seed))
    check_laws(assembled(graph, with_room(graph, target, plan), plan, ROUNDS, 100_000))


@given(seed=seeds)
@settings(max_examples=examples(50))
def test_no_replicated_plan_with_its_relays_deadlocks(seed: int) -> None:
    graph, target, plan = random_replicated(np.random.default_rng(seed), legal=True)
    built = assembled(graph, with_room(graph, target, plan), plan, ROUNDS)
    assert built.package.deliveries["has_credit"].all()
    run(built.package, ROUNDS, NEVER)
    assert built.package.shared["completed"][0] == ROUNDS


@given(seed=seeds)
@settings(max_examples=examples(200))
def test_laws_of_conservation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, int(rng.integers(1, 25)))
    target = random_simulated_target(rng)
    plan = random_plan(rng, graph, target, monotone=target.constraints.acyclic)
    check_laws(assembled(graph, with_room(graph, target, plan), plan, ROUNDS, 100_000))


# --------------------------------------------------------------------------- no deadlock


def towers(rng: np.random.Generator) -> Graph:
    """Chains of unequal length from sources of their own, which later ones join at any place."""
    b = GraphBuilder("towers")
    ends: list[str] = []
    for tower in range(int(rng.integers(1, 5))):
        before = ""
        for level in range(int(rng.integers(1, 8))):
            reads = [(before, None)] if before else []
            if ends and rng.random() < 0.3:
                reads.append((ends[int(rng.integers(len(ends)))], None))
            name = f"t{tower}.{level}"
            b.add_op(
                f"op{tower}.{level}",
                "Add",
                "vector",
                flops=int(rng.integers(1, 2000)),
                dtype="float32",
                reads=reads,
                writes=[(name, int(rng.integers(1, 2000)), "float32")],
            )
            ends.append(name)
            before = name
    b.mark_output(before)
    return b.build()


def valid_plans(rng: np.random.Generator, num_plans: int) -> tuple[Graph, Target, list[Plan]]:
    """Placements SAMPLE draws under a ring's rules, in any order; links from slow to fast."""
    graph = towers(rng) if rng.random() < 0.5 else random_graph(rng, int(rng.integers(2, 20)))
    target = random_simulated_target(
        rng,
        topology=("ring", "chain")[int(rng.integers(2))],
        sram_bytes=10_000_000,
        link_bytes_per_s=float(1e8 * 10 ** rng.uniform(-2, 2)),
        no_skip=("prefix", "off")[int(rng.integers(2))],
        triangle=("longest_path", "three_chip", "adjacent")[int(rng.integers(3))],
    )
    problem = placement_problem(graph, target)
    log_probs = rng.normal(0, 1, (problem.num_units, target.num_chips))
    drawn = sample(problem, log_probs, seed=int(rng.integers(2**31)), num_samples=num_plans)
    placements = drawn.placement[:, problem.unit_of_op]
    return graph, target, [make_plan(graph, target, p, order=random_order(rng, graph)) for p in placements]


@given(seed=seeds)
@settings(max_examples=examples(100))
def test_no_valid_plan_deadlocks(seed: int) -> None:
    graph, target, plans = valid_plans(np.random.default_rng(seed), 10)
    assert verify(graph, target, plans[0]) == []
    for plan in plans:
        built = assembled(graph, target, plan, ROUNDS)
        assert built.fit.outcome == FITS
        assert built.package.deliveries["has_credit"].all()
        run(built.package, ROUNDS, NEVER)
        assert built.package.shared["completed"][0] == ROUNDS


@pytest.mark.parametrize(("length", "enough"), [(1, 10), (2, 12)])
def test_a_detour_deadlocks_by_its_timing(length: int, enough: int) -> None:
    """Where the buffers take what comes before the way round is through, nothing stops."""
    graph = detour(length)
    for buffers in range(1, enough + 2):
        kinds = [chip_kind(count=length + 2)]
        target = small_mcm(kinds=kinds, simulator=simulated_package(buffers=buffers))
        metrics = simulate_plan(graph, target, make_plan(graph, target, range(length + 2)))
        assert metrics.valid == (buffers >= enough)
        if not metrics.valid:
            stopped = f"deadlock: link {length}->{length + 1} is stopped by tensor 'skip' of inference"
            assert stopped in metrics.reason


# --------------------------------------------------------------------------- noise


def test_noise_by_seed_only() -> None:
    graph, target = toy_graph(), small_mcm(2, simulator=simulated_package(noise=0.1))
    plan = make_plan(graph, target, (0, 0, 0, 1, 1, 1))
    exact = simulate_plan(graph, target, plan).interval_s
    assert simulate_plan(graph, target, plan).interval_s == exact
    noisy = [simulate_plan(graph, target, plan, seed=seed).interval_s for seed in range(30)]
    assert simulate_plan(graph, target, plan, seed=7).interval_s == noisy[7]
    assert len(set(noisy)) == len(noisy)
    spread = np.log(np.array(noisy) / exact)
    assert abs(spread.mean()) < 0.05
    assert 0.07 < spread.std() < 0.13
    assert simulate_plan(graph, target, plan, seed=1, without=["noise"]).interval_s == exact
