"""The page docs/simulator_agreement.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from fidelity_plans import GOOD_KINDS, RANDOM_KINDS, WITHIN
from numpy.typing import NDArray
from scipy.stats import pearsonr, spearmanr

from go_opt.env.simulator.simulate import DEADLOCKED, FRAGMENTED, TOO_LARGE

if TYPE_CHECKING:
    from bench_fidelity import Agreement, Row

HEAD = """# How far the model and the simulator agree

Written by `tests/benchmarks/bench_fidelity.py`; [simulator.md](simulator.md) says what is simulated
and what to make of this. Target `mcm-6x6`. Test graphs are for reporting only.
"""
LEGEND = f"""
*random*: random valid plans ({"; ".join(RANDOM_KINDS)}). *good*: within {WITHIN}x of the best slice by the
model ({"; ".join(GOOD_KINDS)}). *fail*: of the plans that are valid by the model, those that do not run.
*Pearson*, *Spearman*: of the logarithms of both intervals; a dash where one does not vary (by a millionth).
*pairs*: how often the better of two plans by the model is the better by the simulator, pairs apart by a
millionth in both; *best pairs*: the same among the best tenth by the model. *ratio*: simulated over
analytical interval, median (5 % to 95 %). *regret*: what the model's best plan that runs costs by the
simulator, over the simulator's best; *tried*: plans to try, best first, until one runs.
"""
SETS = ("random", "good")
SAME = 1e-6  # relative
MEASURES = ("graph", "split", "ops", "plans", "fail", "Pearson", "Spearman", "pairs", "best pairs", "ratio",
            "regret", "tried")  # fmt: skip


def write_page(rows: Sequence[Row], path: Path) -> None:
    page = [HEAD, "## Summary\n", *summary(rows)]
    for which in SETS:
        page += [
            f"\n## {which.capitalize()} plans\n",
            *table(MEASURES, [cells(row, which) for row in rows], 2),
        ]
    page += [LEGEND, "## Why plans fail\n", *failures(rows)]
    page += ["\n## What each effect does\n", EFFECTS_HEAD, *effects(rows), PER_GRAPH_HEAD, *shares(rows)]
    page += ["\n## Terms that the model could have\n", TERMS_HEAD, *terms(rows)]
    path.write_text("\n".join(page) + "\n", "utf-8")


def table(columns: Sequence[str], lines: Iterable[Sequence[str]], texts: int = 1) -> list[str]:
    head = ["| " + " | ".join(columns) + " |", "|" + "---|" * texts + "---:|" * (len(columns) - texts)]
    return head + ["| " + " | ".join(line) + " |" for line in lines]


# --------------------------------------------------------------------------- agreement


def running(those: Agreement) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both intervals of the plans that run."""
    runs = np.isfinite(those.simulated_s)
    return those.model_s[runs], those.simulated_s[runs]


def correlation(of: Callable, model_s: NDArray[np.float64], simulated_s: NDArray[np.float64]) -> float:
    if len(model_s) < 3 or np.ptp(np.log(model_s)) < SAME or np.ptp(np.log(simulated_s)) < SAME:
        return np.nan
    # Equal up to rounding is equal: ranks would make an order of it.
    return float(of(np.log(model_s).round(9), np.log(simulated_s).round(9)).statistic)


def pairwise(model_s: NDArray[np.float64], simulated_s: NDArray[np.float64]) -> float:
    """Share of pairs that both put in the same order, of those both tell apart."""
    first, second = np.triu_indices(len(model_s), 1)
    by_model = np.log(model_s[first] / model_s[second])
    simulated = np.log(simulated_s[first] / simulated_s[second])
    differ = (abs(by_model) > SAME) & (abs(simulated) > SAME)
    return float((by_model * simulated > 0)[differ].mean()) if differ.any() else np.nan


def best_decile(model_s: NDArray[np.float64], simulated_s: NDArray[np.float64]) -> float:
    best = np.argsort(model_s, kind="stable")[: max(2, len(model_s) // 10)]
    return pairwise(model_s[best], simulated_s[best])


def regret(those: Agreement) -> tuple[float, int]:
    """Of the model's best that runs, against the best there is; and how many were tried."""
    by_model = np.argsort(those.model_s, kind="stable")
    running_first = np.flatnonzero(np.isfinite(those.simulated_s[by_model]))
    if len(running_first) == 0:
        return np.nan, len(by_model)
    tried = int(running_first[0])
    return float(those.simulated_s[by_model[tried]] / those.simulated_s.min() - 1), tried + 1


def cells(row: Row, which: str) -> list[str]:
    those = getattr(row, which)
    model_s, simulated_s = running(those)
    ratio = np.quantile(simulated_s / model_s, [0.5, 0.05, 0.95]) if len(model_s) else np.full(3, np.nan)
    lost, tried = regret(those)
    return [
        row.name,
        row.split,
        str(row.ops),
        str(len(those.model_s)),
        percent(1 - len(model_s) / len(those.model_s)),
        number(correlation(pearsonr, model_s, simulated_s)),
        number(correlation(spearmanr, model_s, simulated_s)),
        percent(pairwise(model_s, simulated_s)),
        percent(best_decile(model_s, simulated_s)),
        "{:.2f} ({:.2f}-{:.2f})".format(*ratio) if len(model_s) else "-",
        percent(lost),
        str(tried),
    ]


def summary(rows: Sequence[Row]) -> list[str]:
    lines = []
    for splits in (("train", "validation"), ("test",)):
        graphs = [row for row in rows if row.split in splits]
        for which in SETS if graphs else ():
            sets = [getattr(row, which) for row in graphs]
            pairs = [running(those) for those in sets]
            plans, runs = sum(len(those.model_s) for those in sets), sum(len(pair[0]) for pair in pairs)
            ratios = np.concatenate([simulated_s / model_s for model_s, simulated_s in pairs])
            lines.append(
                [
                    " + ".join(splits),
                    which,
                    str(len(graphs)),
                    str(plans),
                    percent(1 - runs / plans),
                    *(spread(correlation(of, *pair) for pair in pairs) for of in (pearsonr, spearmanr)),
                    percent(np.nanmedian([pairwise(*pair) for pair in pairs])),
                    percent(np.nanmedian([best_decile(*pair) for pair in pairs])),
                    "{:.2f} ({:.2f}-{:.2f})".format(*np.quantile(ratios, [0.5, 0.05, 0.95])),
                    "{} ({})".format(
                        *(percent(f([regret(t)[0] for t in sets])) for f in (np.nanmedian, np.nanmax))
                    ),
                ]
            )
    columns = ("split", "set", "graphs", "plans", "fail", "Pearson", "Spearman", "pairs", "best pairs",
               "ratio", "regret (most)")  # fmt: skip
    return [
        *table(columns, lines, 2),
        "\nMedians over graphs (least and most in brackets); *fail* and *ratio* over all plans.",
    ]


def failures(rows: Sequence[Row]) -> list[str]:
    lines = []
    for row in rows:
        for which in SETS:
            those = getattr(row, which)
            fails = ~np.isfinite(those.simulated_s)
            if fails.any():
                causes = [
                    int((those.outcome == cause).sum()) for cause in (TOO_LARGE, FRAGMENTED, DEADLOCKED)
                ]
                shown = [*causes, int(those.streams[fails].sum()), those.runs_without_memory]
                lines.append([row.name, which, f"{fails.sum()} of {len(fails)}", *map(str, shown)])
    refused = [f"{r.random.too_large} of {r.random.tries} ({r.name})" for r in rows if r.random.too_large]
    columns = (
        "graph",
        "plans",
        "fail",
        "too large",
        "no hole",
        "deadlock",
        "stream weights",
        "run without `memory`",
    )
    return [
        *table(columns, lines, 2),
        "\n*too large*: aligned sizes add up to more than a chip has. *no hole*: a buffer finds no address. "
        "*stream weights*: of the failures, those where the model streams weights on some chip. "
        f"The model itself refused {', '.join(refused) or 'none'} of the random draws, not counted above.",
    ]


# --------------------------------------------------------------------------- effects

EFFECTS_HEAD = """On up to 40 plans of each set and graph, those that run with everything on; train and
validation graphs. *disagreement*: the mean of |log(simulated/analytical)|, graphs weighing alike. *spread*:
the standard deviation of log(simulated/analytical) within a graph, mean over graphs: what can change an
order.
`noise` multiplies a measurement by a random factor and is not among them.
"""
PER_GRAPH_HEAD = """
Disagreement of each graph and the part of it that goes when one effect is switched off, random / good
plans; effects that change nothing on any graph are left out. Parts need not add up to 100 %: where two loads
are near the bottleneck, either may be it. Below zero: the plans are slower without the effect (an input sent
once to chips far apart waits for a buffer at all of them).
"""
TERMS_HEAD = """The model with terms added, against the simulator with everything on; train and validation
graphs, same plans. What the last line leaves is waiting: of buffers, engines, latency, and of weights that
come one kernel ahead.
"""


def mean(rows: Sequence[Row], which: str, of: Callable[[Agreement], float]) -> float:
    """Over train and validation graphs that have plans which run."""
    values = [
        of(getattr(row, which)) for row in rows if row.split != "test" and len(getattr(row, which).ablated)
    ]
    return float(np.mean(values))


def full_of(those: Agreement) -> NDArray[np.float64]:
    return np.log(those.simulated_s / those.model_s)[those.ablated]


def pair_of_sets(rows: Sequence[Row], of: Callable[[Agreement], NDArray[np.float64]]) -> list[str]:
    """Disagreement and spread of random and of good plans."""
    values = [
        mean(rows, which, f)
        for which in SETS
        for f in (lambda those: abs(of(those)).mean(), lambda those: of(those).std())
    ]
    return [f"{value:.4f}" for value in values]


def effects(rows: Sequence[Row]) -> list[str]:
    lines = [["all on", *pair_of_sets(rows, full_of)]]
    for effect in rows[0].random.off:
        lines.append([f"`{effect}` off", *pair_of_sets(rows, lambda those, e=effect: those.off[e])])
    for effect in rows[0].random.alone:
        lines.append([f"`{effect}` alone", *pair_of_sets(rows, lambda those, e=effect: those.alone[e])])
    return table(("", "disagreement, random", "spread, random", "disagreement, good", "spread, good"), lines)


def shares(rows: Sequence[Row]) -> list[str]:
    shown = changing(rows)
    lines = []
    for row in rows:
        sets = [getattr(row, which) for which in SETS]
        line = [row.name, row.split, " / ".join(f"{disagreement(those):.3f}" for those in sets)]
        line += [" / ".join(percent(share(those, effect)) for those in sets) for effect in shown]
        lines.append(line)
    return table(("graph", "split", "disagreement", *(f"`{effect}`" for effect in shown)), lines, 2)


def changing(rows: Sequence[Row]) -> list[str]:
    """Effects that change a graph's disagreement by half a percent or more."""
    shares = {
        e: [abs(share(getattr(row, which), e)) for row in rows for which in SETS] for e in rows[0].random.off
    }
    return [effect for effect, values in shares.items() if np.nanmax(values) > 0.005]


def disagreement(those: Agreement) -> float:
    return float(abs(full_of(those)).mean()) if len(those.ablated) else np.nan


def share(those: Agreement, effect: str) -> float:
    """Of the disagreement, what goes with the effect."""
    whole = disagreement(those)
    return 1 - float(abs(those.off[effect]).mean()) / whole if whole > SAME else np.nan


def terms(rows: Sequence[Row]) -> list[str]:
    lines = [["the model as it is", *pair_of_sets(rows, full_of), *orders(rows, None)]]
    for term in rows[0].random.terms:
        left = pair_of_sets(rows, lambda those, t=term: full_of(those) - those.terms[t])
        lines.append([term, *left, *orders(rows, term)])
    columns = ("", "disagreement, random", "spread, random", "disagreement, good", "spread, good",
               "pairs, random", "pairs, good")  # fmt: skip
    return table(columns, lines)


def orders(rows: Sequence[Row], term: str | None) -> list[str]:
    """Median over graphs of the pairs put in the right order."""
    found = []
    for which in SETS:
        values = []
        for row in rows:
            those = getattr(row, which)
            added = np.exp(those.terms[term]) if term else 1.0
            if row.split != "test":
                values.append(
                    pairwise(those.model_s[those.ablated] * added, those.simulated_s[those.ablated])
                )
        found.append(percent(float(np.nanmedian(values))))
    return found


def percent(value: float) -> str:
    return f"{value:.1%}" if np.isfinite(value) else "-"


def number(value: float) -> str:
    return f"{value:.3f}" if np.isfinite(value) else "-"


def spread(values: Iterable[float]) -> str:
    known = [value for value in values if np.isfinite(value)]
    return f"{np.median(known):.3f} ({min(known):.3f}-{max(known):.3f})"
