"""The search for a training step against full enumeration, and its bound against simulated schedules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest

from go_opt.env import load_target
from go_opt.errors import InfeasibleError
from go_opt.parallel import Case, Configuration, Machine, Transformer, cost_step, plan_step
from go_opt.parallel.block import Block
from go_opt.parallel.division import Waits, least_schedule_s
from go_opt.parallel.schedule import order_of, simulate
from go_opt.parallel.search import CHOICES, Candidate, candidates, solve
from go_opt.parallel.step import Layers, Step, Sums, pipeline_s

CASES, DRAWN = 10, 14


def random_case(rng: np.random.Generator) -> Case:
    """A few layers on a few devices whose memory holds some of the configurations."""
    hidden = int(rng.choice([512, 1024, 2048]))
    layers, devices = int(rng.integers(2, 7)), int(rng.choice([2, 4, 8, 16]))
    model = Transformer(
        hidden, layers, 16, int(rng.choice([512, 2048])), vocabulary=int(rng.choice([1024, 100_000]))
    )
    target = load_target(f"{rng.choice(['dgx-a100', 'ethernet-a100'])}-{devices}")
    low = 16 * model.parameters / devices * rng.uniform(0.5, 6.0)
    kind = replace(target.kinds[0], sram_bytes=int(low))
    levels = tuple(replace(level, host_s_per_layer=0.0) for level in target.levels)
    return Case(model, Machine(replace(target, kinds=(kind,), levels=levels)), int(rng.choice([8, 16, 24])))


def divisions(one: Candidate) -> Iterator[Step]:
    """Every division of layers among ranks with every recomputation, whether it fits or not."""
    unit, ranks = one.chosen.stages_per_device, one.chosen.pipeline
    units = one.case.model.layers // unit
    for counts in product(range(1, units + 1), repeat=ranks):
        if sum(counts) * unit == one.case.model.layers:
            for layers in product(*(list(mixes(count, unit)) for count in counts)):
                yield Step(one.case, one.chosen, tuple(layers))


def mixes(count: int, unit: int) -> Iterator[Layers]:
    for full in range(count + 1):
        for attention in range(count + 1 - full):
            yield (count - full - attention) * unit, attention * unit, full * unit


def fits(step: Step) -> bool:
    return not step.lacks


@pytest.mark.parametrize("seed", range(CASES))
def test_every_division_of_every_configuration(seed: int) -> None:
    rng = np.random.default_rng([45, seed])
    case = random_case(rng)
    ranked = [one for one in candidates(case) if one.chosen.pipeline < 4 or case.model.layers < 5]
    best_s, simulated_s = np.inf, np.inf
    for k in rng.permutation(len(ranked))[:DRAWN]:
        one = ranked[k]
        of_this = [step for step in divisions(one) if fits(step)]
        least_s = min((step.step_s for step in of_this), default=np.inf)
        found = solve(one, np.inf)
        assert (found.step_s if found else np.inf) == pytest.approx(least_s, rel=1e-9)
        if found is not None:
            assert fits(found)
            assert one.formula_s(one.least_fitting_work_s) <= least_s
        best_s = min(best_s, least_s)
        bound_s = one.least_schedule_s(1.5 * least_s) if of_this else np.inf
        for step in of_this[:: max(1, len(of_this) // 4)]:
            simulated_s = min(simulated_s, took_s := simulate(step).step_s)
            assert bound_s <= took_s * (1 + 1e-9)
    if best_s < np.inf:
        plan = plan_step(case)
        assert plan.best.step_s <= best_s * (1 + 1e-9)
        assert plan.lower_bound_s <= min(best_s, simulated_s) * (1 + 1e-9)
        assert plan.is_complete
        assert [step.step_s for step in plan.choices] == sorted(step.step_s for step in plan.choices)


def toy(ranks: int, v: int, number: int, forward_s: float, head_s: float = 0.0) -> Step:
    """A step of ranks whose layers take ``forward_s``, twice that backwards, and no messages."""
    case = Case(Transformer(64, ranks * v, 4, 8), Machine(load_target(f"dgx-a100-{ranks}")), number)
    schedule = "interleaved" if v > 1 else "1f1b"
    chosen = Configuration(pipeline=ranks, schedule=schedule, stages_per_device=v)
    step = cost_step(case, chosen)
    zeros = (0.0, 0.0, 0.0)
    block = Block(forward_s, 2 * forward_s, zeros, zeros, zeros, (1.0, 1.0, 1.0), zeros, head_s, 0.0)
    step.__dict__.update(block=block, sent_s=0.0)
    return step


@pytest.mark.parametrize(("ranks", "v", "number"), [(1, 1, 3), (4, 1, 8), (4, 1, 2), (4, 3, 8), (8, 2, 24)])
def test_equal_stages_take_what_the_formula_says(ranks: int, v: int, number: int) -> None:
    timeline = simulate(toy(ranks, v, number, 1.0))
    assert timeline.end_s.max() == pytest.approx(pipeline_s([3.0 * v] * ranks, number, v))
    # Every stage runs every micro-batch forwards and backwards, one pass at a time.
    assert (timeline.start_s[:, 1:] >= timeline.end_s[:, :-1] - 1e-12).all()
    passes = timeline.order
    for rank in range(ranks):
        seen = set(zip(passes.chunk[rank], passes.micro_batch[rank], passes.is_backward[rank], strict=True))
        assert len(seen) == 2 * v * number == passes.chunk.shape[1]


@pytest.mark.parametrize("v", [1, 2, 3])
@pytest.mark.parametrize("seed", range(12))
def test_unequal_ranks_never_take_longer_than_the_formula(seed: int, v: int) -> None:
    rng = np.random.default_rng(seed)
    ranks = int(rng.integers(2, 7))
    number = int(rng.integers(1, 20)) if v == 1 else ranks * int(rng.integers(2, 6))
    step = toy(ranks, v, number, 1.0, head_s=float(rng.uniform(0, 6)))
    uneven = replace(step, layers=tuple((int(n) * v, 0, 0) for n in rng.integers(1, 6, ranks)))
    uneven.__dict__.update(block=step.block, sent_s=0.0)
    formula_s = pipeline_s(uneven.rank_s, number, v, step.block.head_s)
    assert simulate(uneven).end_s.max() <= formula_s * (1 + 1e-12)


def test_a_head_lengthens_the_last_of_the_stages_of_a_device() -> None:
    # Two stages of 3 s on each rank, and a head of 2 s: for the second all wait 5 s.
    assert pipeline_s([6.0, 8.0], 4, 2, 2.0) == 3.5 * 8.0 + 0.5 * 14.0
    # With fewer layers on the last rank, its second stage takes 1 + 2 s, as long as the others'.
    assert pipeline_s([6.0, 4.0], 4, 2, 2.0) == 3.5 * 6.0 + 0.5 * 10.0


@pytest.mark.parametrize("seed", range(12))
def test_the_bound_of_all_divisions(seed: int) -> None:
    """Layers of one second on ranks with a head and messages: the best simulated division is not below."""
    rng = np.random.default_rng(seed)
    ranks, number = int(rng.integers(2, 5)), int(rng.integers(1, 12))
    layers = ranks + int(rng.integers(0, 6))
    head_s, sent_s = rng.uniform(0, 4), rng.uniform(0, 1)
    step = toy(ranks, 1, number, 1.0 / 3.0, head_s)
    simulated_s = np.inf
    for counts in product(range(1, layers), repeat=ranks):
        if sum(counts) == layers:
            divided = replace(step, layers=tuple((n, 0, 0) for n in counts))
            divided.__dict__.update(block=step.block, sent_s=sent_s)
            simulated_s = min(simulated_s, simulate(divided).end_s.max())
    seconds = np.tile(np.arange(layers + 1.0), (ranks, 1))
    seconds[:, 0] = np.inf
    seconds[-1] += head_s
    waits = Waits(
        sent_s * np.array([1.0, *[2.0] * (ranks - 2), 1.0]), sent_s * np.array([1.0, *[2.0] * (ranks - 1)])
    )
    held = np.minimum(number, ranks - np.arange(ranks, dtype=float))
    bound_s = least_schedule_s(seconds, waits, np.zeros(layers + 1), held, layers, float(number), 1.0, 100.0)
    assert bound_s <= simulated_s * (1 + 1e-9)
    assert bound_s > 0.8 * simulated_s


@pytest.mark.parametrize(("ranks", "number"), [(2, 3), (4, 8), (5, 6)])
def test_the_bound_of_equal_ranks_is_their_schedule(ranks: int, number: int) -> None:
    seconds = np.array([[np.inf, 3.0]] * ranks)
    zeros, held = np.zeros(ranks), ranks - np.arange(ranks, dtype=float)
    bound_s = least_schedule_s(
        seconds, Waits(zeros, zeros), np.zeros(2), held, ranks, float(number), 1.0, 100.0
    )
    assert bound_s == pytest.approx((number + ranks - 1) * 3.0)


@dataclass(frozen=True)
class Summed(Case):
    """A case whose gradients take given seconds to sum."""

    given: Sums | None = None

    def sums(self, chosen: Configuration) -> Sums:
        assert self.given is not None
        return self.given

    def optimizer_s(self, chosen: Configuration) -> float:
        return 0.0


def summed(step: Step, sum_s: float, times: int = 1, *, overlaps: bool = True) -> Step:
    given = Summed(step.case.model, step.case.machine, step.case.batch, Sums(sum_s, times, 0.25))
    found = replace(step, case=given, chosen=replace(step.chosen, overlap=overlaps))
    found.__dict__.update(block=step.block, sent_s=0.0)
    return found


def test_sums_that_overlap_by_hand() -> None:
    """Four layers of 1 s forwards and 2 s backwards on one device, and a quarter second to gather."""
    step = replace(toy(1, 1, 3, 1.0), layers=((4, 0, 0),))
    model = replace(step.case.model, layers=4)
    step = replace(step, case=Case(model, step.case.machine, 3))
    step.__dict__.update(block=toy(1, 1, 3, 1.0).block, sent_s=0.0)

    def left_s(sum_s: float, times: int = 1, *, overlaps: bool = True) -> float:
        found = summed(step, sum_s, times, overlaps=overlaps)
        assert found.step_s == pytest.approx(simulate(found).step_s)
        return found.terms_s["reduction_s"] - 0.25

    assert left_s(4.0, overlaps=False) == pytest.approx(4.0)
    assert left_s(4.0) == pytest.approx(1.0)  # of the first layer, the others are hidden
    assert left_s(12.0) == pytest.approx(12.0 - 3 * 2.0)  # three backward passes hide 2 s each
    assert left_s(4.0, 3) == pytest.approx(1.0)
    # Sums of 14 s for each of three micro-batches of 12 s, from the end of the first backward pass.
    assert left_s(14.0, 3) == pytest.approx(3 * 14.0 - (2 * 12.0 + 3 * 2.0))


@pytest.mark.parametrize(("ranks", "v", "number"), [(2, 1, 5), (4, 1, 8), (2, 2, 4), (4, 3, 8), (3, 2, 12)])
@pytest.mark.parametrize("sum_s", [0.5, 3.0, 9.0, 40.0])
def test_sums_of_equal_ranks_leave_what_the_formula_says(
    ranks: int, v: int, number: int, sum_s: float
) -> None:
    step = toy(ranks, v, number, 1.0)
    one = summed(step, sum_s)
    assert simulate(one).step_s == pytest.approx(one.step_s)
    assert one.step_s <= summed(step, sum_s, overlaps=False).step_s
    of_each = summed(step, sum_s, number)
    assert simulate(of_each).step_s <= of_each.step_s * (1 + 1e-9)


def test_the_order_of_1f1b() -> None:
    order = order_of(Configuration(pipeline=2), 3)
    assert order.is_backward.astype(int).tolist() == [[0, 0, 1, 0, 1, 1], [0, 1, 0, 1, 0, 1]]
    assert order.micro_batch.tolist() == [[0, 1, 0, 2, 1, 2], [0, 0, 1, 1, 2, 2]]


def test_simulated_memory_is_the_claimed() -> None:
    model = Transformer(1024, 24, 16, 2048)
    case = Case(model, Machine(load_target("dgx-a100-4")), 32)
    for text in ("", ",schedule=gpipe", ",schedule=interleaved,stages_per_device=3"):
        step = cost_step(case, f"pipeline=4,recompute=none{text}")
        assert simulate(step).peak_bytes == pytest.approx(step.memory_bytes, abs=1)


def test_a_model_of_a_trillion_on_thousands() -> None:
    case = Case(Transformer(25600, 128, 160, 2048), Machine(load_target("dgx-a100-3072")), 3072)
    plan = plan_step(case, budget_s=60.0)
    assert plan.gap < 0.02  # measured: 0.3 %
    assert len({step.chosen for step in plan.choices}) == CHOICES
    assert simulate(plan.best).step_s == pytest.approx(plan.best.step_s, rel=0.01)


def test_a_heavy_head_makes_ranks_uneven() -> None:
    model = Transformer(2048, 10, 16, 2048, vocabulary=400_000)
    target = load_target("dgx-a100-8")
    plan = plan_step(Case(model, Machine(target), 8))
    assert plan.best.step_s < min(
        step.step_s
        for p in (1, 2, 4, 8)
        for t in (1, 2, 4, 8)
        if p * t <= 8 and fits(step := cost_step(plan.best.case, Configuration(t, p, 8 // (p * t))))
    )
    pipelines = [one for one in candidates(plan.best.case) if one.chosen.pipeline == 4]
    found = [step for one in pipelines if (step := solve(one, np.inf)) is not None]
    assert any(sum(step.layers[-1]) < sum(step.layers[0]) for step in found)


def test_nothing_fits() -> None:
    case = Case(Transformer(12288, 96, 96, 2048), Machine(load_target("dgx-a100-8")), 8)
    with pytest.raises(InfeasibleError, match="no configuration fits into 80 GB") as raised:
        plan_step(case)
    assert raised.value.exit_code == 3


def test_no_time_still_gives_a_plan() -> None:
    case = Case(Transformer(4096, 32, 32, 2048), Machine(load_target("dgx-a100-64")), 128)
    hasty, whole = plan_step(case, budget_s=1e-9), plan_step(case)
    assert not hasty.is_complete
    assert hasty.best.step_s >= whole.best.step_s
    assert hasty.lower_bound_s <= whole.lower_bound_s
