"""The policy in the portfolio: it takes turns, delays nothing, and never decides the answer by its pace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from go_opt.agents.decoding.decode import Outputs
from go_opt.agents.decoding.proposals import Advice, advice
from go_opt.agents.inputs.features import NUM_EXPLORED
from go_opt.env import Target, load_target
from go_opt.errors import InfeasibleError, InvalidInputError, PolicyError
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate
from go_opt.result import OptimizeResult, Request, Step
from go_opt.search import optimizer, portfolio
from go_opt.search.finish.leaner import FEWER
from go_opt.search.methods import events, guesses
from go_opt.search.methods.guesses import PATIENCE
from go_opt.search.optimizer import optimize_request
from go_opt.search.portfolio import policy_takes_part
from go_opt.solver.walk.walk import NUM_FEATURES
from tests.go_opt.test_optimizer import answer, assert_consistent
from tests.strategies import random_graph, small_mcm

FILE = Path("policy.safetensors")  # of a policy that is asked through a stand-in
OWN = ("policy", "structured keys")


@pytest.fixture(autouse=True)
def _guesses_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other methods would leave nothing to guess on graphs this small."""
    kept = tuple(one for one in portfolio.METHODS if one.when != "in turn" or one.name == "guesses")
    monkeypatch.setattr(portfolio, "METHODS", kept)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return random_graph(np.random.default_rng(8), 40, precision="native")  # no bound proves it early


@pytest.fixture(scope="module")
def target() -> Target:
    return small_mcm(3, sram_bytes=10**9)


def opinion(graph: Graph, target: Target) -> Advice:
    rng = np.random.default_rng(1)
    outputs = Outputs(
        rng.standard_normal(NUM_FEATURES),
        *(rng.standard_normal(graph.num_ops) for _ in range(3)),
        np.zeros((2, NUM_EXPLORED)),
    )
    return advice(lambda features: outputs, graph, target)


class Asked(Future[Advice | None]):
    """An answer that comes when it has been looked for ``looks`` times; never, where that is None."""

    def __init__(self, said: Advice | Exception | None, looks: int | None) -> None:
        super().__init__()
        self._said, self._looks = said, looks

    def done(self) -> bool:
        if self._looks == 0 and not super().done():
            if isinstance(self._said, Exception):
                self.set_exception(self._said)
            else:
                self.set_result(self._said)
        if self._looks:
            self._looks -= 1
        return super().done()


Asking = Callable[..., list[int]]


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch, graph: Graph, target: Target) -> Asking:
    """Sets what the policy says and after how many looks; returns a list that each question is noted in."""
    monkeypatch.setattr(events, "POLL_S", 0.001)

    def of(said: Any = "an opinion", looks: int | None = 0) -> list[int]:
        questions: list[int] = []

        def ask(policy: Path, graph: Graph, on: Target) -> Asked:
            assert policy == FILE
            questions.append(graph.num_ops)
            return Asked(opinion(graph, on) if said == "an opinion" else said, looks)

        monkeypatch.setattr(portfolio, "ask_policy", ask)
        monkeypatch.setattr(optimizer, "find_policy", lambda policy: None if policy == "none" else FILE)
        return questions

    return of


def search(graph: Graph, target: Target, policy: str = "default", **options: Any) -> OptimizeResult:
    calls = {name: options.pop(name) for name in ("on_step", "should_stop") if name in options}
    return optimize_request(graph, target, Request(policy=policy, **options), **calls)


def methods(result: OptimizeResult) -> list[str]:
    return [step.method for step in result.history]


def by_policy(result: OptimizeResult) -> list[str]:
    return [method for method in methods(result) if method.startswith(OWN)]


# --------------------------------------------------------------------------- the policy alone


def test_alone_it_makes_every_plan(graph: Graph, target: Target, asking: Asking) -> None:
    asking()
    first, again = (search(graph, target, "only", max_evaluations=9, seed=seed) for seed in (5, 5))
    assert set(methods(first)) == {"policy: placement"}
    assert_consistent(graph, target, first)
    assert (first.metrics.interval_s, methods(first)) == (again.metrics.interval_s, methods(again))


def test_alone_it_decides_all(graph: Graph, target: Target, asking: Asking) -> None:
    asking()
    with pytest.raises(InvalidInputError, match="decide must be 'all'"):
        search(graph, target, "only", decide="placement")


def test_alone_without_an_answer_there_is_no_plan(graph: Graph, target: Target, asking: Asking) -> None:
    asking(None)
    with pytest.raises(InfeasibleError, match="no answer"):
        search(graph, target, "only", max_evaluations=9)


# --------------------------------------------------------------------------- who takes part


def test_it_takes_part_where_it_has_something_to_decide() -> None:
    ring, free = load_target("mcm-2x2"), load_target("gpu-4")

    def takes_part(on: Target = ring, **options: Any) -> bool:
        return policy_takes_part(on, Request(**options))

    assert takes_part()
    assert not takes_part(decide="placement")
    assert not takes_part(objective="latency")
    assert takes_part(free, objective="latency")


def test_who_takes_no_part_is_not_asked(graph: Graph, target: Target, asking: Asking) -> None:
    questions = asking()
    assert by_policy(search(graph, target, decide="placement")) == []
    assert questions == []


def test_without_a_policy_random_orders_have_their_patience(graph: Graph, target: Target) -> None:
    result = search(graph, target, "none", budget_s=60.0)
    assert by_policy(result) == []
    assert methods(result)[-1].startswith("slice: random order")
    in_vain = [step.method for step in result.history if step.best_s == result.history[-1].best_s][1:]
    orders = [method for method in in_vain if method.startswith("slice: random order")]
    assert sum(not method.endswith(FEWER) for method in orders) == PATIENCE


# --------------------------------------------------------------------------- reproducible


@pytest.mark.parametrize("objective", ["throughput", "latency"])
@pytest.mark.parametrize("looks", [0, 7, 200])
def test_the_answer_does_not_depend_on_when_it_is_heard(
    graph: Graph, asking: Asking, objective: Any, looks: int
) -> None:
    target = load_target("gpu-4")
    options = {"objective": objective, "max_evaluations": 60, "seed": 4}
    asking(looks=1)
    first = search(graph, target, **options)
    asking(looks=looks)
    assert answer(search(graph, target, **options)) == answer(first)
    assert by_policy(first)
    assert_consistent(graph, target, first)


def test_turns_alternate_from_the_first_guess_on(graph: Graph, target: Target, asking: Asking) -> None:
    asking(looks=30)
    proposed = methods(search(graph, target, max_evaluations=60))
    first = proposed.index("policy")
    assert not any("random" in method for method in proposed[:first])
    # Some turns are two evaluations long: a slice, and one that streams no weights.
    turns = [m for m in proposed[first:] if "resident" not in m]
    assert all(m.startswith(OWN) for m in turns[::2])
    assert all("random" in m for m in turns[1::2])


def test_the_rest_of_the_search_is_as_without_it(graph: Graph, target: Target, asking: Asking) -> None:
    asking()
    mixed = search(graph, target, max_evaluations=40)
    alone = search(graph, target, "none", max_evaluations=40)
    others = [m for m in methods(mixed) if not m.startswith(OWN)]
    assert others == methods(alone)[: len(others)]


def test_one_that_cannot_be_run_changes_nothing(graph: Graph, target: Target, asking: Asking) -> None:
    asking(said=None, looks=3)
    without = search(graph, target, "none", max_evaluations=40)
    assert answer(search(graph, target, max_evaluations=40)) == answer(without)


# --------------------------------------------------------------------------- anytime


def test_it_is_asked_after_the_first_plans(graph: Graph, target: Target, asking: Asking) -> None:
    questions = asking(looks=None)
    steps: list[tuple[str, int]] = []
    search(
        graph,
        target,
        on_step=lambda step: steps.append((step.method, len(questions))),
        should_stop=lambda: len(steps) > PATIENCE,
    )
    before = [method for method, asked in steps if not asked]
    assert before[0] == "greedy"
    assert before[-1].startswith("slice: default order")
    # It never answered, and everything else had its turn.
    assert len(steps) > PATIENCE


def test_it_is_waited_for_when_patience_is_out(graph: Graph, target: Target, asking: Asking) -> None:
    asking(looks=500)
    result = search(graph, target, budget_s=60.0)
    first = methods(result).index("policy")
    assert "random" in methods(result)[first - 1]
    # It got as many turns as random orders.
    assert len(by_policy(result)) >= PATIENCE
    assert result.wall_s < 60.0


def test_the_deadline_ends_the_wait(graph: Graph, target: Target, asking: Asking) -> None:
    asking(looks=None)
    result = search(graph, target, budget_s=0.3)
    assert 0.3 <= result.wall_s < 5.0
    assert by_policy(result) == []
    assert_consistent(graph, target, result)


@pytest.mark.parametrize("limits", [{"budget_s": 600.0}, {"max_evaluations": 10**6}])
def test_a_stop_ends_the_wait(graph: Graph, target: Target, asking: Asking, limits: dict[str, Any]) -> None:
    asking(looks=None)
    steps: list[Step] = []
    polls = iter(range(10**9))
    # Many more questions whether to stop than there are steps: it waits.
    result = search(
        graph,
        target,
        on_step=steps.append,
        should_stop=lambda: next(polls) > len(steps) + 50,
        **limits,
    )
    assert result.history == tuple(steps)
    assert by_policy(result) == []


def test_an_interrupt_during_the_wait_keeps_the_plan(graph: Graph, target: Target, asking: Asking) -> None:
    asking(looks=None)
    polls = iter(range(10**9))

    def interrupt() -> bool:
        if next(polls) > 100:
            raise KeyboardInterrupt
        return False

    assert_consistent(graph, target, search(graph, target, max_evaluations=10**6, should_stop=interrupt))


# --------------------------------------------------------------------------- won, or at fault


def test_the_answer_says_when_it_won(
    graph: Graph, target: Target, asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = search(graph, target, "none", max_evaluations=300, seed=4, replication=False)
    assert "random" in best.method

    def plans(*_: Any) -> Iterator[Candidate]:
        plan = best.plan
        while True:
            yield Candidate("policy: placement", plan.placement, plan.order, plan.fusion_group)

    asking()
    monkeypatch.setattr(guesses, "policy_plans", plans)
    result = search(graph, target, max_evaluations=20, replication=False)
    assert result.method == "policy: placement"
    assert set(result.plan.provenance) == {"policy: placement"}
    assert result.metrics.interval_s == best.metrics.interval_s


def test_a_file_at_fault_ends_the_search(graph: Graph, target: Target, asking: Asking) -> None:
    asking(said=PolicyError("policy file 'mine' is truncated."))
    with pytest.raises(PolicyError, match="'mine' is truncated"):
        search(graph, target, max_evaluations=40)
