"""States: figures worked by hand on a decoder of one layer, then random graphs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt import evaluate, verify
from go_opt.env import Target, cost_tables, evaluate_batch, evaluate_plan
from go_opt.env.copies.splits import unsplit_graph
from go_opt.env.simulator.simulate import simulate_plan
from go_opt.errors import GraphError, PlanError
from go_opt.model.builder import GraphBuilder
from go_opt.model.codecs.graph_json import graph_from_dict, graph_to_dict
from go_opt.model.codecs.plan_json import plan_from_dict, plan_to_dict
from go_opt.model.codecs.wire import graph_from_proto, graph_to_proto, plan_from_proto, plan_to_proto
from go_opt.model.graph import STATE, Graph, with_sequences
from go_opt.model.op_costs import OpSignature
from go_opt.model.plan import Plan
from go_opt.model.rules.table import rule_of
from go_opt.model.states import with_host_states, without_states
from go_opt.solver.verify.memory import memory_bytes
from go_opt.solver.verify.verifier import verify as verify_plan
from tests.replicated import anywhere, replicated_plan
from tests.strategies import (
    examples,
    kind_names,
    make_plan,
    random_graph,
    random_plan,
    random_target,
    seeds,
    small_mcm,
    with_random_states,
)


def decoder(*, writes: str = "Concat", scope: str = "sequence") -> Graph:
    """A step that appends 100 elements to a cache of 1000; figures on ``small_mcm()``, 2 bytes an element.

        op      reads (bytes)                     writes        bytes moved  kernel
        embed   token 200, w 4000                 k 200                4400   5.4 us
        append  past 2000 (in place: 0), k 200    present 2200    200 + 200   1.4 us
        attend  present 2200, k 200               y 200                2600   3.6 us
        out     y 200, w 4000                     z 200                4400   5.4 us

    A copy reads 2000 bytes more, and writes 2000 more.
    """
    b = GraphBuilder("decoder")
    b.add_tensor("token", 100, "bf16", "input")
    b.add_tensor("w", 2000, "bf16", "weight")
    b.add_tensor("past", 1000, "bf16", "input")
    for name, op_type, op_class, reads, write, elements in (
        ("embed", "MatMul", "matrix", ["token", "w"], "k", 100),
        ("append", writes, "data_movement", ["past", "k"], "present", 1100),
        ("attend", "MatMul", "matrix", ["present", "k"], "y", 100),
        ("out", "MatMul", "matrix", ["y", "w"], "z", 100),
    ):
        given = [(read, None) for read in reads]
        b.add_op(
            name, op_type, op_class, flops=0, dtype="bf16", reads=given, writes=[(write, elements, "bf16")]
        )
    b.mark_output("z")
    b.add_state("past", "present", scope)  # type: ignore[arg-type]
    return b.build()


def in_us(value: object) -> Any:
    return pytest.approx(np.array(value) * 1e-6, rel=1e-9, abs=1e-18)


def test_a_cache_is_written_in_place_and_loads_no_link_of_the_host() -> None:
    graph, target = decoder(), small_mcm(2)
    (state,) = graph.states
    assert (state.in_place, state.written, state.buffers) == (True, 100, 1)
    metrics = evaluate_plan(graph, target, make_plan(graph, target, (0, 0, 0, 1)))
    assert metrics.compute_s.tolist() == [in_us(5.4 + 1.4 + 3.6), in_us(5.4)]
    assert metrics.link_s.tolist() == [in_us(2), in_us(0), in_us(1), in_us(1)]
    # The cache of 2200 bytes and the weight; k alive on the chip, token, y and z in two buffers.
    assert metrics.weight_bytes.tolist() == [2200 + 4000, 4000]
    assert metrics.peak_bytes.tolist() == [2 * 200 + 200 + 2 * 200, 2 * (200 + 200)]


def test_an_op_that_does_not_write_a_part_writes_all_of_the_next_value() -> None:
    graph, target = decoder(writes="Add"), small_mcm(2)
    (state,) = graph.states
    assert (state.in_place, state.written, state.buffers) == (False, 1100, 1)
    metrics = evaluate_plan(graph, target, make_plan(graph, target, (0, 0, 1, 1)))
    # append reads the cache and k, and writes `present` for its reader and as the next value.
    append = (2000 + 200 + 2 * 2200) / 1000 + 1
    assert metrics.compute_s[0] == in_us(5.4 + append)


def test_the_next_inference_of_a_sequence_waits_for_its_last() -> None:
    target = small_mcm(2)
    graph = decoder()
    placement = (0, 0, 0, 1)
    latency_us = 1 + 5.4 + 1.4 + 3.6 + (2 + 1) + 5.4 + 1
    for sequences in (1, 2, 3):
        on_graph = with_sequences(graph, sequences)
        plan = make_plan(on_graph, target, placement)
        assert plan.sequences == sequences
        metrics = evaluate_plan(on_graph, target, plan)
        assert metrics.latency_s == in_us(latency_us)
        assert metrics.interval_s == in_us(max(10.4, latency_us / sequences))
        waits = latency_us / sequences > 10.4
        assert metrics.bottleneck == ("latency of a sequence" if waits else "chip 0 compute")
        assert metrics.weight_bytes.tolist() == [sequences * 2200 + 4000, 4000]


def replicated_decoder(sequences: int, sizes: list[int], **changes: Any) -> tuple[Graph, Target, Plan]:
    """embed, append and attend on the first stage, out on the second."""
    graph, target = with_sequences(decoder(), sequences), small_mcm(sum(sizes), **changes)
    return graph, target, replicated_plan(graph, target, np.array([0, 0, 0, 1]), np.array(sizes))


def test_sequences_stay_on_their_replicas() -> None:
    graph, target, plan = replicated_decoder(5, [2, 3])
    assert verify(graph, target, plan) == []
    metrics = evaluate_plan(graph, target, plan)
    # Sequences 0, 2, 4 and 1, 3 on chips 0 and 1; then 0, 3 and 1, 4 and 2 on chips 2 to 4.
    assert metrics.compute_s == in_us([10.4 * 3 / 5, 10.4 * 2 / 5, 5.4 * 2 / 5, 5.4 * 2 / 5, 5.4 / 5])
    # y, 2 us: three fifths come from chip 0, and as many go on behind chip 2; one to chip 4.
    assert metrics.link_s == in_us([2 * 3 / 5, 2, 2 * 3 / 5, 2 / 5, 0, 1, 1])
    # Each chip has room for three sequences, as the first has.
    assert metrics.weight_bytes.tolist() == [3 * 2200 + 4000] * 2 + [4000] * 3
    # Sequence 2 goes from chip 0 to chip 4: three hops more than from one to the next.
    assert metrics.latency_s == in_us(1 + 10.4 + (2 + 4) + 5.4 + 1)
    assert metrics.interval_s == in_us(10.4 * 3 / 5)
    assert metrics.bottleneck == "chip 0 compute"


def test_as_many_replicas_as_sequences_wait_for_each_other() -> None:
    graph, target, plan = replicated_decoder(2, [2, 1])
    metrics = evaluate_plan(graph, target, plan)
    assert metrics.compute_s == in_us([5.2, 5.2, 5.4])
    # The first sequence has the longer way.
    assert metrics.latency_s == in_us(1 + 10.4 + (2 + 2) + 5.4 + 1)
    assert metrics.interval_s == in_us(21.8 / 2)
    simulated = simulate_plan(graph, target, plan)
    assert simulated.interval_s == pytest.approx(metrics.interval_s, rel=0.03)


def test_more_replicas_than_sequences_are_refused() -> None:
    graph, target, plan = replicated_decoder(2, [3, 1])
    assert [violation.message for violation in verify(graph, target, plan)] == [
        "op 'embed' is replicated over chips 0 to 2, but only 2 sequences are in flight."
    ]
    # It is costed as if two chips ran it.
    assert evaluate_plan(graph, target, plan).compute_s == in_us([5.2, 5.2, 0, 5.4])


def test_steps_of_a_model_have_no_replicas() -> None:
    graph, target = decoder(scope="model"), small_mcm(3)
    plan = replicated_plan(graph, target, np.array([0, 0, 0, 1]), np.array([2, 1]))
    assert [violation.message for violation in verify(graph, target, plan)] == [
        "op 'embed' is replicated over chips 0 to 1, but only one inference is in flight."
    ]


@pytest.mark.parametrize(("sequences", "message"), [(4, None), (5, "some have more of the 5 sequences")])
def test_only_replicas_with_as_many_sequences_forward_weights(sequences: int, message: str | None) -> None:
    graph, target, plan = replicated_decoder(sequences, [2, 1], sram_bytes=9_000)
    found = verify(graph, target, replace(plan, forwards=(0,)))
    assert [violation.constraint for violation in found] == ([] if message is None else ["forwarding"])
    assert message is None or message in found[0].message


def test_replicas_hold_the_states_of_their_own_sequences() -> None:
    """Three of five sequences fit the busiest chip; with all five it would be full."""
    graph, target, plan = replicated_decoder(5, [2, 1], sram_bytes=8_000)
    assert evaluate(graph, target, plan).valid
    assert verify(graph, target, plan) == []
    graph, target, plan = replicated_decoder(7, [2, 1], sram_bytes=8_000)
    assert not evaluate(graph, target, plan).valid
    assert [violation.constraint for violation in verify(graph, target, plan)] == ["memory"]


def test_a_stage_with_state_of_the_model_has_no_replicas() -> None:
    """A graph with states of both scopes, as if steps of sequences did not wait for each other."""
    data = graph_to_dict(decoder())
    data["states"].append({"read": "w", "next": "w", "scope": "model"})
    next(row for row in data["tensors"] if row["name"] == "w")["kind"] = "state"
    graph, target = with_sequences(graph_from_dict(data), 2), small_mcm(3)
    plan = replicated_plan(graph, target, np.array([0, 0, 0, 0]), np.array([2]))
    assert [violation.message for violation in verify(graph, target, plan)] == [
        "op 'embed' is replicated over chips 0 to 1, which all need the state 'w'."
    ]


def test_too_many_sequences_do_not_fit() -> None:
    graph, target = decoder(), small_mcm(2, sram_bytes=10_000)
    fits = make_plan(with_sequences(graph, 4), target, (0, 0, 0, 1))
    assert evaluate(graph, target, fits).valid  # the weight streams, 8800 of states and 1000 do not
    assert verify(graph, target, fits) == []
    exceeds = make_plan(with_sequences(graph, 5), target, (0, 0, 0, 1))
    metrics = evaluate(graph, target, exceeds)
    assert not metrics.valid
    assert [violation.constraint for violation in verify(graph, target, exceeds)] == ["memory"]
    metrics = evaluate_plan(with_sequences(graph, 5), target, exceeds)
    assert metrics.reason == (
        "out of memory: chip 0 needs 11000 bytes for states and 1000 for activations and has 10000"
    )


def test_ops_that_touch_a_state_share_a_chip() -> None:
    graph, target = decoder(), small_mcm(3)
    plan = make_plan(graph, target, (0, 0, 1, 1))
    (found,) = verify(graph, target, plan)
    assert found.constraint == "state"
    assert found.message == (
        "state 'past' lies on one chip: op 'append' is on chip 0, op 'attend' on chip 1."
    )


def test_a_step_with_state_of_the_model_begins_when_the_last_has_ended() -> None:
    graph, target = decoder(scope="model"), small_mcm(2)
    plan = make_plan(graph, target, (0, 0, 0, 1))
    metrics, simulated = (evaluate(graph, target, plan, fidelity=one) for one in ("analytical", "simulated"))
    assert metrics.interval_s == metrics.makespan_s
    assert metrics.bottleneck == "the step before"
    assert simulated.interval_s == pytest.approx(simulated.makespan_s)


def test_readers_of_the_old_value_come_before_the_writer() -> None:
    b = GraphBuilder("two readers")
    b.add_tensor("past", 1000, "bf16", "state")
    b.add_tensor("x", 10, "bf16", "input")
    b.add_op("append", "Concat", "data_movement", flops=0, dtype="bf16",
             reads=[("past", None), ("x", None)], writes=[("present", 1010, "bf16")])  # fmt: skip
    b.add_op("look", "Relu", "vector", flops=1, dtype="bf16",
             reads=[("past", None)], writes=[("y", 1000, "bf16")])  # fmt: skip
    b.mark_output("y")
    b.add_state("past", "present", "sequence")
    rule = rule_of(OpSignature("Relu", ((1000,),), ((1000,),), {}))
    assert rule is not None
    b.set_rule("look", rule, ("past",))
    graph = b.build()
    assert graph.op_names == ("look", "append")
    assert graph.known_rule_of(0).results == (graph.tensor_index["y"],)
    assert graph.states[0].in_place
    assert (graph.edge_src.tolist(), graph.edge_dst.tolist()) == ([0], [1])


def test_a_reader_that_needs_the_next_value_needs_both_buffers() -> None:
    b = GraphBuilder("difference")
    b.add_tensor("past", 1000, "bf16", "state")
    b.add_tensor("x", 10, "bf16", "input")
    b.add_op("roll", "Concat", "data_movement", flops=0, dtype="bf16",
             reads=[("past", None), ("x", None)], writes=[("present", 1000, "bf16")])  # fmt: skip
    b.add_op("halve", "Mul", "vector", flops=1, dtype="bf16",
             reads=[("present", None)], writes=[("half", 1000, "bf16")])  # fmt: skip
    b.add_op("differ", "Sub", "vector", flops=1, dtype="bf16",
             reads=[("half", None), ("past", None)], writes=[("y", 1000, "bf16")])  # fmt: skip
    b.mark_output("y")
    b.add_state("past", "present", "sequence")
    (state,) = b.build().states
    assert (state.in_place, state.buffers, state.written) == (False, 2, 1000)


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ([("past", "present"), ("k", "y")], "state 'k' is computed by op 'embed'"),
        ([("past", "present"), ("past", "y")], "state 'past' has two next values"),
        ([("past", "nothing")], "which nothing defines"),
    ],
)
def test_a_wrong_pair_is_refused(states: list[tuple[str, str]], message: str) -> None:
    data = graph_to_dict(decoder())
    data["states"] = [{"read": read, "next": following, "scope": "sequence"} for read, following in states]
    with pytest.raises(GraphError, match=message):
        graph_from_dict(data)


def test_a_state_without_a_next_value_is_refused() -> None:
    data = graph_to_dict(decoder())
    del data["states"]
    with pytest.raises(GraphError, match="state 'past' has no next value"):
        graph_from_dict(data)


def test_a_state_on_the_host_is_an_input_and_an_output_of_each_step() -> None:
    """Its ops may lie apart.

        op      reads (bytes)                 writes         bytes moved  kernel
        append  past 2000, k 200              present 2200          4400   5.4 us
        attend  present 2200, k 200           y 200                 2600   3.6 us

    The first inference waits 10 us for `past`, then 22 + 1 us for `present` on the link.
    """
    graph, target = with_sequences(with_host_states(decoder(), ("past",)), 3), small_mcm(2)
    assert graph.fingerprint == decoder().fingerprint
    plan = make_plan(graph, target, (0, 0, 1, 1))
    assert (plan.host_states, plan.sequences) == (("past",), 3)
    assert verify(decoder(), target, plan) == []
    metrics, simulated = (evaluate(decoder(), target, plan, fidelity=f) for f in ("analytical", "simulated"))
    assert metrics.compute_s.tolist() == [in_us(5.4 + 5.4), in_us(3.6 + 5.4)]
    assert metrics.link_s.tolist() == [in_us(24), in_us(0), in_us(1 + 10), in_us(11 + 1)]
    assert metrics.weight_bytes.tolist() == [4000, 4000]
    assert metrics.peak_bytes.tolist() == [2 * (200 + 2000 + 2200 + 200), 2 * (2200 + 200 + 200) + 200]
    assert metrics.latency_s == in_us(10 + 5.4 + (22 + 1) + 3.6 + 5.4 + 1)
    assert [metrics.interval_s, simulated.interval_s] == [in_us(24), in_us(24)]
    alone = evaluate(decoder(), target, replace(plan, sequences=1))
    assert alone.interval_s == alone.latency_s == metrics.latency_s


def test_a_plan_and_its_graph_agree_on_where_states_lie() -> None:
    graph, target = decoder(), small_mcm(2)
    plan = make_plan(with_host_states(graph, ("past",)), target, (0, 0, 1, 1))
    (found,) = verify_plan(graph, target, plan)
    assert found.message == "plan and graph differ on whether the host keeps state 'past'."
    with pytest.raises(PlanError, match="host_states: the graph has no state 'future'"):
        evaluate(graph, target, replace(plan, host_states=("future",)))


@settings(max_examples=examples(200))
@given(seed=seeds, num_ops=st.integers(1, 15))
def test_files_and_messages_keep_states(seed: int, num_ops: int) -> None:
    rng = np.random.default_rng(seed)
    graph = with_random_states(rng, random_graph(rng, num_ops))
    for copy in (graph_from_dict(graph_to_dict(graph)), graph_from_proto(graph_to_proto(graph))):
        assert copy.states == graph.states
        assert copy.fingerprint == graph.fingerprint
    plain = without_states(graph, lambda name: True)
    assert not plain.states
    assert not (plain.tensor_kind == STATE).any()
    moved, target = _some_on_host(rng, graph), small_mcm(2)
    plan = make_plan(moved, target, [0] * graph.num_ops)
    assert moved.fingerprint == plan.graph_fingerprint == graph.fingerprint
    assert unsplit_graph(graph, plan).states == moved.states
    for again in (plan_from_dict(plan_to_dict(plan)), plan_from_proto(plan_to_proto(plan))):
        assert again.host_states == plan.host_states


def _some_on_host(rng: np.random.Generator, graph: Graph) -> Graph:
    """The graph with some of its states on the host."""
    names = [graph.tensor_names[state.read] for state in graph.states if rng.random() < 0.5]
    return with_host_states(graph, tuple(names))


@settings(max_examples=examples(200))
@given(seed=seeds, num_ops=st.integers(1, 20))
def test_memory_of_the_verifier_is_that_of_the_model(seed: int, num_ops: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng, no_skip="off", triangle="off", acyclic=False)
    replicates = rng.random() < 0.6
    scopes = {"scopes": ("sequence",)} if replicates else {}
    graph = with_random_states(rng, random_graph(rng, num_ops, kinds=kind_names(target)), **scopes)
    graph = with_sequences(_some_on_host(rng, graph), int(rng.integers(1, 5)))
    plan = random_plan(rng, graph, target, fusion="legal")
    if replicates and graph.states:
        plan = anywhere(rng, target, plan)
        graph = with_sequences(graph, int(plan.replication.max() + rng.integers(5)))
        plan = replace(plan, sequences=graph.sequences)
    touching = [plan.placement[graph.readers_of(state.read)] for state in graph.states]
    if any((chips != chips[:1]).any() for chips in touching):
        return
    rows = (plan.placement, plan.order, plan.fusion_group, plan.replication)
    terms = evaluate_batch(cost_tables(graph, target), *(row[None] for row in rows))
    first = np.unique(plan.placement)
    peak, weights, states = memory_bytes(graph, target, plan)
    np.testing.assert_array_equal(peak[first], terms.peak_bytes[0][first])
    # What exceeds the memory streams, but for states.
    resident = terms.weight_bytes[0][first]
    assert (resident <= (weights + states)[first]).all()
    fits = (peak + weights + states <= target.chip_sram_bytes)[first]
    np.testing.assert_array_equal((weights + states)[first][fits], resident[fits])
    assert (resident >= states[first]).all()
    is_short = any(violation.constraint == "memory" for violation in verify(graph, target, plan))
    assert is_short == (not terms.fits[0])


@settings(max_examples=examples(60))
@given(seed=seeds)
def test_no_interval_is_below_the_latency_of_all_sequences(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng, topology="ring", overlap=True, sram_bytes=10**6)
    graph = with_random_states(rng, random_graph(rng, int(rng.integers(2, 12)), kinds=kind_names(target)))
    if not graph.has_scope("sequence") or graph.has_scope("model"):
        return
    graph = with_sequences(_some_on_host(rng, graph), sequences := int(rng.integers(1, 6)))
    plan = anywhere(rng, target, random_plan(rng, graph, target, fusion="legal"))
    plan = replace(plan, replication=np.minimum(plan.replication, sequences).astype(np.int32))
    metrics, simulated = evaluate_plan(graph, target, plan), simulate_plan(graph, target, plan)
    assert metrics.interval_s >= metrics.latency_s / sequences * (1 - 1e-9)
    if simulated.valid:  # the makespan is that of the first sequence, on the first replicas
        assert simulated.interval_s >= simulated.makespan_s / sequences * (1 - 1e-6)
