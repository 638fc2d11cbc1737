"""Ranges of layers on mixed nodes: hand-worked flows and bounds, brute force, mutants."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from go_opt.errors import InfeasibleError, InvalidInputError, TargetError
from go_opt.parallel import Transformer
from go_opt.serving.mixed.bound import cheapest_cover, upper_bound
from go_opt.serving.mixed.cluster import Case, parse_cluster
from go_opt.serving.mixed.flow import Network, max_flow, new_work
from go_opt.serving.mixed.plan import RangePlan, helix_text, networkx_flow, plan_of, vllm_text
from go_opt.serving.mixed.search import plan_ranges

MODEL = Transformer(hidden=8, layers=4, heads=1, sequence=1)
# A fast node passes 10 tokens/s with 1 layer, 6 with 2, 4 with 3; a slow one 5 and 3.
PAIR = """
name = "pair"
link_bytes_per_s = 1e9
[[kinds]]
name = "fast"
tokens_per_s = [10, 6, 4]
[[kinds]]
name = "slow"
tokens_per_s = [5, 3]
[[nodes]]
kind = "fast"
[[nodes]]
kind = "slow"
count = 2
"""


def case_of(text: str, layers: int = 4) -> Case:
    return Case(replace(MODEL, layers=layers), parse_cluster(text, "x"))


def flow_of(case: Case, starts: list[int], ends: list[int]) -> float:
    network = Network(case.node_per_s, case.link_per_s, case.most_held, case.layers)
    return float(max_flow(np.array(starts), np.array(ends), network, new_work(network)))


def test_a_flow_by_hand() -> None:
    case = case_of(PAIR)
    # Layers 0 and 1 on the fast node (6), then 2 and 3 on both slow ones (3 each).
    assert flow_of(case, [0, 2, 2], [2, 4, 4]) == pytest.approx(6.0)
    assert flow_of(case, [0, 2, 3], [2, 3, 4]) == pytest.approx(5.0)
    assert flow_of(case, [0, 3, 3], [2, 4, 4]) == 0.0  # no node holds layer 2


def test_vllm_cuts_one_pipeline_or_several_alike() -> None:
    def text_of(starts: list[int], ends: list[int]) -> str:
        case = case_of(PAIR)
        return vllm_text(plan_of(case, np.array(starts), np.array(ends), upper_bound(case)))

    assert text_of([0, 3, 0], [3, 4, 0]) == "VLLM_PP_LAYER_PARTITION=3,1\n"  # the last node is idle
    with pytest.raises(InvalidInputError, match="no pipeline like this plan"):
        text_of([0, 2, 2], [2, 4, 4])


def test_a_link_limits_what_passes() -> None:
    # 32 bytes/s: 2 activations of 8 elements of 2 bytes.
    slow = PAIR + '[[links]]\nbetween = ["fast", "slow-0"]\nrate_bytes_per_s = 32\n'
    assert flow_of(case_of(slow), [0, 2, 2], [2, 4, 4]) == pytest.approx(2.0 + 3.0)
    # 12 bytes/s from the source: 3 tokens of 4 bytes.
    few = PAIR + '[[links]]\nbetween = ["source", "fast"]\nrate_bytes_per_s = 12\n'
    assert flow_of(case_of(few), [0, 2, 2], [2, 4, 4]) == pytest.approx(3.0)


def test_the_best_plan_of_the_pair_is_proven() -> None:
    plan = plan_ranges(case_of(PAIR), 20.0)
    assert plan.throughput_per_s == pytest.approx(6.0)
    assert plan.status == "OPTIMAL"
    assert plan.verify() == []


def best_by_force(case: Case) -> float:
    """The most of all ranges."""
    choices = [
        [(start, start + held) for held in range(1, most + 1) for start in range(case.layers - held + 1)]
        for most in case.most_held.tolist()
    ]
    best = 0.0
    for chosen in itertools.product(*choices):
        best = max(best, flow_of(case, [one[0] for one in chosen], [one[1] for one in chosen]))
    return best


def random_text(seed: int) -> str:
    random = np.random.default_rng(seed)
    text = f'name = "r"\nlink_bytes_per_s = {random.choice([40, 120, 1e9])}\n'
    for kind in "ab":
        rate = random.integers(4, 30) / np.arange(1, random.integers(3, 5)) ** random.uniform(0.8, 1.3)
        text += f'[[kinds]]\nname = "{kind}"\ntokens_per_s = {rate.round(3).tolist()}\n'
    counts = random.integers(1, 3, 2)
    for kind, count in zip("ab", counts, strict=True):
        text += f'[[nodes]]\nkind = "{kind}"\ncount = {count}\n'
    if random.random() < 0.5:
        text += f'[[links]]\nbetween = ["a", "b"]\nrate_bytes_per_s = {random.integers(20, 200)}\n'
    return text


@pytest.mark.parametrize("seed", range(12))
def test_flows_are_those_of_another_library(seed: int) -> None:
    random = np.random.default_rng(seed)
    case = case_of(random_text(seed) + '[[nodes]]\nkind = "a"\ncount = 4\n', layers=4)
    for _ in range(6):
        held = np.minimum(random.integers(1, 3, case.cluster.num_nodes), case.most_held)
        starts = random.integers(0, case.layers - held + 1)
        plan = RangePlan(case, starts, starts + held, np.zeros(0), 0.0, 0, 0.0)
        flow = flow_of(case, starts.tolist(), (starts + held).tolist())
        assert flow == pytest.approx(networkx_flow(plan))


def test_covers_by_force() -> None:
    random = np.random.default_rng(3)
    for _ in range(30):
        rates, costs = np.sort(random.uniform(1, 9, 4))[::-1].copy(), random.uniform(0.1, 1, 4)
        needed = float(random.uniform(4, 20))
        cost, items = cheapest_cover(rates, costs, needed)
        assert rates[items].sum() >= needed * (1 - 1e-9)
        assert costs[items].sum() == pytest.approx(cost)
        most = int(np.ceil(needed / rates.min()))
        every = (np.array(one) for one in itertools.product(range(most + 1), repeat=4))
        assert cost == pytest.approx(min(one @ costs for one in every if one @ rates >= needed), rel=1e-9)


def test_links_enter_the_bound() -> None:
    # Above 4 the fast node holds 2 layers, so that none is left for two nodes; the link between passes 2.
    text = PAIR.replace("[5, 3]", "[6, 6]").replace("count = 2", "count = 1")
    assert upper_bound(case_of(text)) == pytest.approx(6.0, rel=1e-6)
    slow = text + '[[links]]\nbetween = ["fast", "slow"]\nrate_bytes_per_s = 32\n'
    assert upper_bound(case_of(slow)) == pytest.approx(4.0, rel=1e-6)
    assert best_by_force(case_of(slow)) == pytest.approx(2.0)


@pytest.fixture(scope="module")
def plan() -> RangePlan:
    return plan_ranges(case_of(PAIR), 20.0)


def test_mutants_are_found(plan: RangePlan) -> None:
    flow = plan.flow_per_s
    for broken in (
        replace(plan, flow_per_s=flow * 1.01),
        replace(plan, flow_per_s=np.where(flow == flow.max(), 0.0, flow)),
        replace(plan, starts=plan.starts + 1, ends=plan.ends + 1),
        replace(plan, ends=np.minimum(plan.ends + 1, 4)),
        replace(plan, flow_per_s=flow / 2),
        replace(plan, bound_per_s=plan.throughput_per_s * 0.9),
    ):
        assert broken.verify()
    assert networkx_flow(plan) == pytest.approx(plan.throughput_per_s)


def test_helix_form(plan: RangePlan) -> None:
    lines = helix_text(plan).splitlines()
    assert lines[:4] == ["[Settings]", "offset=2", "", "[Solution]"]
    held = [eval(line.partition("=")[2]) for line in lines[4:]]
    assert [(one[0], one[-1] + 1) for one in held] == list(zip(plan.starts, plan.ends, strict=True))


def test_the_answer_as_json(plan: RangePlan) -> None:
    answer = plan.to_dict()
    assert answer["throughput_per_s"] == pytest.approx(6.0)
    assert sum(node["tokens_per_s"] for node in answer["nodes"] if node["layers"][0] == 0) == pytest.approx(6)
    assert any(line.startswith("bound") for line in plan.lines())


def test_too_few_layers_fit() -> None:
    with pytest.raises(InfeasibleError, match="hold 7 layers together, the model has 8"):
        plan_ranges(case_of(PAIR, layers=8))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('kind = "slow"', 'kind = "none"', "none of kinds"),
        ("[10, 6, 4]", "[10, -6, 4]", "tokens_per_s"),
        ("[10, 6, 4]", "[]", "tokens_per_s"),
        ('name = "slow"', 'name = "fast"', "same name"),
        ("count = 2", "count = 9999", "nodes, the limit"),
        ("link_bytes_per_s = 1e9", "link_bytes_per_s = 0", "link_bytes_per_s"),
        ("link_bytes", "lnk_bytes", "unknown field"),
    ],
)
def test_mistakes_are_one_sentence(old: str, new: str, said: str) -> None:
    with pytest.raises(TargetError, match=said):
        parse_cluster(PAIR.replace(old, new), "x")


def test_links_name_nodes() -> None:
    with pytest.raises(TargetError, match="no group or node"):
        parse_cluster(PAIR + '[[links]]\nbetween = ["fast", "other"]\nrate_bytes_per_s = 1\n', "x")
