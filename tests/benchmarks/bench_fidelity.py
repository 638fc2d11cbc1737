"""How far the analytical model and the simulator agree, and what they disagree about.

Run: PYTHONPATH=. python tests/benchmarks/bench_fidelity.py [NAME ...]   (pip install '.[docs]')

Writes docs/simulator_agreement.md, docs/simulator_agreement.svg and docs/simulator_effects.svg;
docs/simulator.md reads them. For each graph 300 random valid plans and 120 good ones
(``fidelity_plans.py`` says how they are drawn), all valid by the model.
Asserts that every tenth passes the verifier, and that the two agree to 1e-6 with every effect
off, where a steady state is found. Test graphs are for reporting only.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fidelity_picture import write_agreement, write_effects
from fidelity_plans import Case, Drawn, PlanArrays, case_of, good_plans, random_plans
from fidelity_tables import write_page
from numpy.typing import NDArray

from go_opt.env import evaluate_batch, load_target, load_zoo, zoo_entries
from go_opt.env.simulator import SimulatedBatch, simulate_batch
from go_opt.env.simulator.simulate import VALID
from go_opt.env.simulator.simulate import setting_of as simulator_setting
from go_opt.env.target.simulator_parameters import EFFECTS
from go_opt.solver import verify
from tests.strategies import make_plan

DOCS = Path(__file__).parents[2] / "docs"
GRAPHS = (
    "resnet50", "mobilenet_v3_large", "efficientnet_b0", "squeezenet", "bert_base", "t5_small", "swin_t",
    "wav2vec2_base", "patchtst", "dcn_v2", "schnet",
    "inception_v3", "vit_b16",
    "densenet121", "nasnet_mobile", "gpt2", "detr_r50", "dlrm_kaggle",
)  # fmt: skip
NUM_RANDOM, NUM_GOOD = 300, 120
NUM_ABLATED = 40  # plans of each set and graph
SWITCHED = tuple(effect for effect in EFFECTS if effect != "noise")  # noise is a factor of the measurement


@dataclass(frozen=True, eq=False)
class Agreement:
    """One set of plans of one graph. Axis: ``B`` plans."""

    model_s: NDArray[np.float64]  # [B]
    simulated_s: NDArray[np.float64]  # [B] infinite where the plan does not run
    outcome: NDArray[np.int64]  # [B]
    streams: NDArray[np.bool_]  # [B] True where some weights stream, by the model
    tries: int
    too_large: int  # of the tries, by the model
    # Log of the interval over the model's, of some plans that run, with effects switched.
    off: dict[str, NDArray[np.float64]]
    alone: dict[str, NDArray[np.float64]]
    terms: dict[str, NDArray[np.float64]]  # the same of the model with terms added to it
    ablated: NDArray[np.int64]  # rows those are of
    runs_without_memory: int  # of those that fail


@dataclass(frozen=True, eq=False)
class Row:
    """One graph."""

    name: str
    split: str
    ops: int
    random: Agreement
    good: Agreement


def main() -> None:
    splits = {entry.name: entry.split for entry in zoo_entries()}
    rows = []
    for name in sys.argv[1:] or GRAPHS:
        case = case_of(load_zoo(name), load_target("mcm-6x6"))
        sets = random_plans(case, NUM_RANDOM, seed=0), good_plans(case, NUM_GOOD, seed=0)
        rows.append(Row(name, splits[name], case.graph.num_ops, *(agreement(case, drawn) for drawn in sets)))
        print(name, len(sets[0].model_s), len(sets[1].model_s), flush=True)
    write(rows)


def write(rows: list[Row]) -> None:
    write_page(rows, DOCS / "simulator_agreement.md")
    write_agreement(rows, DOCS / "simulator_agreement.svg")
    write_effects(rows, DOCS / "simulator_effects.svg")


def agreement(case: Case, drawn: Drawn) -> Agreement:
    for i in range(0, len(drawn.model_s), 10):
        placement, order, group = (array[i] for array in drawn.plans)
        plan = make_plan(case.graph, case.target, placement, order=order, fusion_group=group)
        assert verify(case.graph, case.target, plan) == []
    full = simulate(case, drawn.plans)
    runs = full.outcome == VALID
    some = np.random.default_rng(0).permutation(np.flatnonzero(runs))[:NUM_ABLATED]
    plans, model_s = taken(drawn.plans, some), drawn.model_s[some]
    assert_equal_without_effects(case, plans, model_s)
    failed = simulate(case, taken(drawn.plans, np.flatnonzero(~runs)), without=("memory",))
    return Agreement(
        model_s=drawn.model_s,
        simulated_s=full.interval_s,
        outcome=full.outcome,
        streams=evaluate_batch(case.tables, *drawn.plans).stream_bytes.any(axis=1),
        tries=drawn.tries,
        too_large=drawn.too_large,
        off={e: np.log(simulate(case, plans, without=(e,)).interval_s / model_s) for e in SWITCHED},
        alone={
            e: np.log(simulate(case, plans, without=set(EFFECTS) - {e}).interval_s / model_s)
            for e in SWITCHED
        },
        terms=model_with_terms(case, plans, model_s),
        ablated=some,
        runs_without_memory=int((failed.outcome == VALID).sum()),
    )


def simulate(case: Case, plans: PlanArrays, without: set[str] | tuple[str, ...] = ()) -> SimulatedBatch:
    return simulate_batch(case.graph, case.target, *plans, without=without)


def taken(plans: PlanArrays, rows: NDArray[np.int64]) -> PlanArrays:
    return PlanArrays(*(array[rows] for array in plans))


def assert_equal_without_effects(case: Case, plans: PlanArrays, model_s: NDArray[np.float64]) -> None:
    ideal = simulate(case, plans, without=EFFECTS)
    np.testing.assert_allclose(ideal.interval_s, model_s, rtol=1e-6)


def model_with_terms(
    case: Case, plans: PlanArrays, model_s: NDArray[np.float64]
) -> dict[str, NDArray[np.float64]]:
    """Log of the interval the model would give with terms added, over what it gives."""
    shaped, setting = simulator_setting(case.graph, case.target, ())
    headers = case.tables._replace(link_s_per_byte=setting.link_s_per_byte)
    both = shaped._replace(link_s_per_byte=setting.link_s_per_byte)
    loads = simulate(case, plans)
    candidates = {
        "shapes in op seconds": evaluate_batch(shaped, *plans).interval_s,
        "headers in link rates": evaluate_batch(headers, *plans).interval_s,
        "both": evaluate_batch(both, *plans).interval_s,
        # Loads as the simulator counts them: inputs per chip and the stream buffer too.
        "both, unicast, stream buffer": np.maximum(loads.compute_s.max(axis=1), loads.link_s.max(axis=1)),
    }
    return {name: np.log(interval_s / model_s) for name, interval_s in candidates.items()}


if __name__ == "__main__":
    main()
