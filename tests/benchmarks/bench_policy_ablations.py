"""Ablations: small trainings that leave out one thing each, and their scores on validation graphs.

Run: PYTHONPATH=. python tests/benchmarks/bench_policy_ablations.py --out LINES [VARIANT ...]

Every variant is trained with ``--samples`` on the training split and the generator, for each
seed; all scores are by the same lessons: the mean log speed-up over greedy of the best of 16
proposals, over the validation graphs up to ``--most-ops``. Variants that learn one lesson only
show what the others are worth. The policy of *as it is* is also decoded in other ways, without
being trained for them, and explored with noise on every op's key in place of noise along
features. Medians over the seeds, their range where it is not a point; differences within the
range say nothing.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from policy_runs import Part, Row, print_table, rows_of, run_arguments, spread

import go_opt
from go_opt.agents.decoding.exploration import KeySpace
from go_opt.agents.networks import PolicyConfig
from go_opt.agents.training.pretrain import PretrainRequest, pretrain
from go_opt.agents.training.problems.cases import Case, case
from go_opt.agents.training.problems.environment import LocalEnvironment, open_session
from go_opt.agents.training.problems.lessons import JOINT, ORDER_AND_FUSION, PLACEMENT, SAMPLED, TASKS, Lesson
from go_opt.agents.training.problems.settings import Settings
from go_opt.agents.training.validation import validate
from go_opt.env import load_zoo, zoo_entries
from go_opt.model.graph import Graph

LESSONS = {"order": ORDER_AND_FUSION, "placement": PLACEMENT, "sample": SAMPLED, "joint": JOINT}
BASE = "as it is"
DECODERS = {
    "SLICE": JOINT,
    "SAMPLE": Lesson("sample_adjacent", TASKS),
    "FIX": Lesson("fix_adjacent", TASKS),
}
PER_OP = "order, noise on every op"
MOST_TRAINED_OPS = 512


@dataclass(frozen=True)
class Variant:
    """What differs from the defaults."""

    network: dict[str, Any] = field(default_factory=dict)
    lessons: tuple[Lesson, ...] | None = None


def of_mean(lessons: tuple[Lesson, ...]) -> tuple[Lesson, ...]:
    """Lessons that raise the mean of the samples in place of the best of some."""
    return tuple(replace(lesson, best_of=1) for lesson in lessons)


VARIANTS = {
    BASE: Variant(),
    "no superposition": Variant({"superposition": False}),
    "no attention in the encoder": Variant({"attention_layers": 0}),
    "1 round": Variant({"rounds": 1}),
    "3 rounds": Variant({"rounds": 3}),
    "half as wide": Variant({"width": PolicyConfig().width // 2}),
    "twice as wide": Variant({"width": PolicyConfig().width * 2}),
    "mean, not best of k": Variant(lessons=of_mean(Settings().lessons)),
    "order alone": Variant(lessons=(ORDER_AND_FUSION,)),
    "placement alone": Variant(lessons=(PLACEMENT,)),
    "sample alone": Variant(lessons=(SAMPLED,)),
    "joint alone": Variant(lessons=(JOINT,)),
}


def main() -> None:
    parser = run_arguments(__doc__)
    parser.add_argument("names", nargs="*", help=f"variants; default: {', '.join(VARIANTS)}")
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--most-ops", type=int, default=1200, help="of validation graphs")
    options = parser.parse_args()
    names = options.names or list(VARIANTS)
    for name in names:
        if name not in VARIANTS:
            parser.error(f"no variant {name!r}; there are {', '.join(VARIANTS)}")
    setting = f"{options.samples} samples, validation up to {options.most_ops} ops"
    parts = [Part("training split", name, seed, setting) for seed in range(options.seeds) for name in names]
    report(rows_of(parts, partial(work, options.samples, options.most_ops), options), names, options)


def work(samples: int, most_ops: int, part: Part) -> Row:
    variant, settings = VARIANTS[part.method], Settings()
    request = PretrainRequest(
        graphs=graphs_of("train", MOST_TRAINED_OPS),
        validation=graphs_of("validation", most_ops),
        target=go_opt.target("mcm-6x6"),
        samples=samples,
        seed=part.seed,
        settings=settings if variant.lessons is None else replace(settings, lessons=variant.lessons),
        config=PolicyConfig(**variant.network),
        most_ops=MOST_TRAINED_OPS,
    )
    with TemporaryDirectory() as folder:
        trained = pretrain(request, Path(folder), LocalEnvironment())
    cases = [case(graph, request.target) for graph in request.validation]

    def score(lesson: Lesson, cases: list[Case] = cases) -> float:
        sessions = [open_session(LocalEnvironment(), of.instance.graph, of.instance.target) for of in cases]
        return validate(trained.policy, cases, sessions, [lesson], part.seed).mean

    scores = {name: score(lesson) for name, lesson in LESSONS.items()}
    if part.method == BASE:
        scores |= {name: score(lesson) for name, lesson in DECODERS.items()}
        scores[PER_OP] = score(ORDER_AND_FUSION, [with_noise_on_every_op(of) for of in cases])
    return {"scores": scores, "graphs": len(cases)}


def with_noise_on_every_op(known: Case) -> Case:
    """The case with keys explored along white noise, of the variance that its features have.

    As many directions as there are features, so that the policy's spreads apply; a draw, a mix
    of them, is white noise on the ops too.
    """
    features = known.key_space.features
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(features.shape) * np.sqrt(np.mean(features**2, axis=0))
    return replace(known, key_space=KeySpace(noise, known.key_space.basis))


def graphs_of(split: str, most_ops: int) -> list[Graph]:
    return [
        load_zoo(entry.name)
        for entry in zoo_entries()
        if entry.split == split and entry.target == "mcm-6x6" and entry.ops <= most_ops
    ]


def report(rows: dict[Part, Row], names: list[str], options: argparse.Namespace) -> None:
    def scores_of(method: str, lesson: str) -> str:
        return spread([row["scores"][lesson] for part, row in rows.items() if part.method == method], ".3f")

    def mean_of(method: str) -> str:
        of_method = [row["scores"] for part, row in rows.items() if part.method == method]
        return spread([float(np.mean([scores[name] for name in LESSONS])) for scores in of_method], ".3f")

    done = [name for name in names if any(part.method == name for part in rows)]
    if not done:
        return
    graphs = next(iter(rows.values()))["graphs"]
    print_table(
        f"Log speed-up over greedy, best of 16, {graphs} validation graphs, {options.samples} samples",
        ["variant", *LESSONS, "mean", "seeds"],
        (
            [
                name,
                *(scores_of(name, lesson) for lesson in LESSONS),
                mean_of(name),
                str(sum(part.method == name for part in rows)),
            ]
            for name in done
        ),
    )
    if BASE in done:
        print_table(
            "The same policy, decoded and explored in other ways",
            ["how", "log speed-up"],
            ([how, scores_of(BASE, how)] for how in ("order", PER_OP, *DECODERS)),
        )


if __name__ == "__main__":
    main()
