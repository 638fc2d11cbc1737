"""The critical path of one execution: worked by hand, then against what the twin says may not be earlier."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.env import Target, evaluate_plan
from go_opt.env.critical_path import CriticalPath, critical_path
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from tests.env.numpy_twin import Twin
from tests.env.test_makespan import US, in_us, measured_graph
from tests.strategies import (
    examples,
    kind_names,
    make_plan,
    random_graph,
    random_plan,
    random_simulated_target,
    random_target,
    seeds,
    small_mcm,
    toy_graph,
)


def told(path: CriticalPath) -> list[tuple[str, str, str, float]]:
    return [(p.kind, p.resource, p.name, round(p.seconds / US, 6)) for p in path.pieces]


def test_a_tensor_that_waits_for_a_link() -> None:
    graph = measured_graph({"a": 3, "b": 4, "c": 5, "d": 6}, {"c": ("a",), "d": ("b",)})
    target = small_mcm(2)
    # a's tensor holds the link from 3 to 13; b's, there at 7, goes from 13 and arrives at 24.
    path = critical_path(graph, target, make_plan(graph, target, (0, 0, 1, 1)))
    assert told(path) == [
        ("kernel", "chip 0", "a", 3),
        ("wait", "link 0->1", "a", 10),
        ("transfer", "chips 0->1", "b", 11),
        ("kernel", "chip 1", "d", 6),
    ]
    assert path.makespan_s == in_us(30)
    # b ends at 7 and its tensor leaves at 13; c ends at 14 + 5, d starts at 24.
    assert [k.slack_s / US for k in path.kernels] == pytest.approx([0, 6, 5, 0], abs=1e-9)
    assert path.by_resource[0] == ("chips 0->1", pytest.approx(11 * US))
    assert [kind for kind, _, _ in path.by_kind] == ["transfer", "wait", "kernel"]


def test_idle_time_by_cause() -> None:
    graph = measured_graph({"a": 3, "b": 4, "c": 1, "d": 6}, {"c": ("a",), "d": ("b",)})
    target = small_mcm(3)
    # a's tensor holds both links from 3 to 13 and is on chip 2 at 15; b's waits for the first until 13.
    path = critical_path(graph, target, make_plan(graph, target, (0, 0, 2, 1)))
    idle = [(i.chip, i.cause, i.name, round(i.start_s / US, 6), round(i.end_s / US, 6)) for i in path.idle]
    assert idle == [
        (2, "kernel", "a", 0, 3),
        (2, "transfer", "a", 3, 15),
        (1, "kernel", "b", 0, 7),
        (1, "link", "b", 7, 13),
        (1, "transfer", "b", 13, 24),
        (0, "nothing", "", 7, 30),
        (2, "nothing", "", 16, 30),
    ]
    all_s = {cause: round(seconds / US, 6) for cause, seconds in path.idle_s().items()}
    assert all_s == {"kernel": 10, "link": 6, "transfer": 23, "host": 0, "nothing": 37}
    assert list(path.idle_s(1).values()) == pytest.approx([7 * US, 6 * US, 11 * US, 0, 0])


def test_idle_for_the_host() -> None:
    graph, target = toy_graph(), small_mcm(1)
    path = critical_path(graph, target, make_plan(graph, target, (0,) * 6))
    # ids take 2 us in, out 10 us back.
    assert [(i.cause, i.name) for i in path.idle] == [("host", "embed"), ("nothing", "")]
    assert list(path.idle_s(0).values()) == pytest.approx([0, 0, 0, 2 * US, 10 * US])


@settings(max_examples=examples(150))
@given(seed=seeds, num_ops=st.integers(1, 25), has_effects=st.booleans())
def test_kernels_and_idle_time_fill_the_makespan(seed: int, num_ops: int, has_effects: bool) -> None:
    graph, target, plan = case(seed, num_ops, has_effects=has_effects)
    path = critical_path(graph, target, plan)
    end_s = {kernel.ops[0]: kernel.start_s + kernel.seconds for kernel in path.kernels}
    for chip in range(target.num_chips):
        runs = [(k.start_s, end_s[k.ops[0]]) for k in path.kernels if k.chip == chip and k.seconds > 0]
        idle = [(i.start_s, i.end_s) for i in path.idle if i.chip == chip]
        spans = sorted(runs + idle)
        assert [0.0, *(end for _, end in spans)] == pytest.approx(
            [*(start for start, _ in spans), path.makespan_s], rel=1e-9, abs=1e-15
        )
    for idle in path.idle:
        if idle.cause == "kernel":
            assert idle.end_s == end_s[idle.name]
        elif idle.cause in ("link", "transfer"):
            producer = int(graph.tensor_producer[graph.tensor_names.index(idle.name)])
            assert plan.placement[producer] != idle.chip
            ptr, reader = graph.successors
            names = {graph.op_names[op] for op in reader[ptr[producer] : ptr[producer + 1]]}
            assert any(names & set(k.ops) and k.chip == idle.chip for k in path.kernels)


def test_from_the_host_and_back() -> None:
    graph, target = toy_graph(), small_mcm(1)
    path = critical_path(graph, target, make_plan(graph, target, (0,) * 6))
    kinds = [piece.kind for piece in path.pieces]
    assert (kinds[0], kinds[-1]) == ("host in", "host out")
    assert sum(p.seconds for p in path.pieces if p.kind == "kernel") == in_us(43.4)
    assert all(kernel.slack_s == pytest.approx(0, abs=1e-15) for kernel in path.kernels)


def case(seed: int, num_ops: int, *, has_effects: bool = False) -> tuple[Graph, Target, Plan]:
    rng = np.random.default_rng(seed)
    target = random_simulated_target(rng) if has_effects else random_target(rng)
    graph = random_graph(rng, num_ops, kinds=kind_names(target))
    return graph, target, random_plan(rng, graph, target)


@settings(max_examples=examples(200))
@given(seed=seeds, num_ops=st.integers(1, 25), has_effects=st.booleans())
def test_the_pieces_follow_each_other_and_add_up(seed: int, num_ops: int, has_effects: bool) -> None:
    graph, target, plan = case(seed, num_ops, has_effects=has_effects)
    path, makespan_s = critical_path(graph, target, plan), evaluate_plan(graph, target, plan).makespan_s
    assert path.makespan_s == makespan_s
    ends = [0.0, *(piece.end_s for piece in path.pieces)]
    assert [piece.start_s for piece in path.pieces] == pytest.approx(ends[:-1], rel=1e-9, abs=1e-15)
    assert ends[-1] == pytest.approx(makespan_s, rel=1e-12)
    assert sum(piece.seconds for piece in path.pieces) == pytest.approx(makespan_s, rel=1e-12)


@settings(max_examples=examples(150))
@given(seed=seeds, num_ops=st.integers(1, 14))
def test_a_kernel_may_slip_by_its_slack_and_no_more(seed: int, num_ops: int) -> None:
    graph, target, plan = case(seed, num_ops)
    path, twin = critical_path(graph, target, plan), OrderedTwin(graph, target, plan)
    assert twin.makespan_with(-1, 0.0) == pytest.approx(path.makespan_s, rel=1e-9)
    for m, kernel in enumerate(path.kernels):
        assert twin.makespan_with(m, kernel.slack_s) == pytest.approx(path.makespan_s, rel=1e-9)
        more_s = kernel.slack_s + 0.1 * path.makespan_s
        late_s = twin.makespan_with(m, more_s)
        assert late_s == pytest.approx(path.makespan_s + more_s - kernel.slack_s, rel=1e-9)


class OrderedTwin(Twin):
    """Runs as the twin does, and again with a kernel late: links and the host serve in the same order."""

    def __init__(self, graph: Graph, target: Target, plan: Plan) -> None:
        super().__init__(graph, target, plan)
        self.stream = evaluate_plan(graph, target, plan).stream_bytes.tolist()
        self.asked: list[int] = []  # tensors as they asked for links
        self.makespan(self.stream)
        self.first_asked = list(self.asked)

    def send(self, tensor: int, now: float, free_at: list[float], there_at: dict[int, float]) -> float:
        self.asked.append(tensor)
        return super().send(tensor, now, free_at, there_at)

    def makespan_with(self, late: int, delay_s: float) -> float:
        """Kernels in the order in which they ended; the one that is late starts so much later than it did."""
        there_at = self.host_arrivals(self.stream)
        free_at = [0.0] * (self.num_links + 2)
        chip_free_at = dict.fromkeys(self.chips, 0.0)
        start_s, done = self.starts(), 0.0
        homes = [self.kernel_of[int(self.graph.tensor_producer[k])] for k in self.first_asked]
        for m in self.with_silent([*dict.fromkeys(homes)]):
            kernel = self.kernels[m]
            begin = max(there_at[m], chip_free_at[kernel.chip])
            if m == late:
                begin = max(begin, start_s[m] + delay_s)
            now = chip_free_at[kernel.chip] = begin + kernel.seconds
            done = max(done, now)
            for k in (k for op in kernel.ops for k in sorted(self.writes[op])):
                done = max(done, Twin.send(self, k, now, free_at, there_at))
        return done

    def starts(self) -> list[float]:
        return [kernel.start_s for kernel in critical_path(self.graph, self.target, self.plan).kernels]

    def with_silent(self, by_end: list[int]) -> list[int]:
        """Kernels that write nothing as well: any order that keeps those of their chips will do."""
        silent = set(range(len(self.kernels))) - set(by_end)
        order: list[int] = []
        for m in by_end:
            chip = self.kernels[m].chip
            order += sorted(s for s in silent if s < m and self.kernels[s].chip == chip)
            silent -= set(order)
            order.append(m)
        return [*order, *sorted(silent)]
