"""Training of the policy, beside the untrained network: some seeds side by side, scored on validation.

Run: PYTHONPATH=. python tests/benchmarks/bench_policy_training.py --out FOLDER [--seeds 3] [--visits 20000]

A graph visit is one graph in one step. The score is the log of how many times faster than the greedy
plan the best of 16 proposals is, mean over the validation split up to 1,200 ops
(``agents/training/validation.py``). The untrained network is the one that training starts from, scored
with the same draws. Every seed has a process for the network, on the GPU where there is one, and
``--players`` processes that draw graphs, play them and judge the plans. A run that was killed goes
on from its last file; ``--table`` prints what is there, the validation with the best score included, and
``--test`` scores the untrained and the last networks on the test split, with other draws.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import numpy as np
from measuring import header, row

import go_opt
from go_opt.agents.decoding.outputs import Outputs
from go_opt.agents.inputs.features import GraphFeatures
from go_opt.agents.training.problems.curriculum import Curriculum, common_bucket
from go_opt.agents.training.problems.lessons import Lesson
from go_opt.agents.training.problems.settings import Settings
from go_opt.training_inputs import as_policy, zoo_graphs

MOST_VALIDATION_OPS = 1200
TEST_SEED = 1000
NAMES = {"slice_cheapest": "orders", "slice_sampled": "slices", "sample_adjacent": "SAMPLE"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="a file of each seed, and its weights")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--visits", type=int, default=20_000)
    parser.add_argument("--graphs-per-step", type=int, default=8)
    parser.add_argument("--players", type=int, default=1, help="processes of each seed, beside the network's")
    parser.add_argument("--most-ops", type=int, default=1024, help="of a training graph")
    parser.add_argument("--validate-every", type=int, default=2000, help="graph visits")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="by the clock; then stop")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--test", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # of the processes that follow
    if options.test:
        print_test(options)
        return
    if not options.table:
        spawn = get_context("spawn")
        seeds = [spawn.Process(target=train, args=(options, seed)) for seed in range(options.seeds)]
        for process in seeds:
            process.start()
        for process in seeds:
            process.join()
    print_table(options)


def train(options: argparse.Namespace, seed: int) -> None:
    """One seed to its end; a line of scores for the untrained network and for each validation."""
    from go_opt.agents.networks import PolicyConfig, initial_parameters
    from go_opt.agents.policy.compilation_cache import enable_compilation_cache
    from go_opt.agents.policy.network import save_policy
    from go_opt.agents.training.checkpoint import (
        Checkpoint,
        from_arrays,
        load_checkpoint,
        save_checkpoint,
        to_arrays,
    )
    from go_opt.agents.training.updates.learner import Learner, LearnerState

    enable_compilation_cache()
    config, settings = PolicyConfig(), Settings(graphs_per_step=options.graphs_per_step)
    steps = -(-options.visits // options.graphs_per_step)
    every = max(1, options.validate_every // options.graphs_per_step)
    learner = Learner(config, settings, steps)
    state, first = learner.start(initial_parameters(config, seed)), 0
    folder, log = options.out / f"seed-{seed}", options.out / f"seed-{seed}.jsonl"
    saved = load_checkpoint(folder)
    if saved is not None:
        first = saved.progress["step"]
        state = LearnerState(
            from_arrays("parameters", saved.arrays, state.parameters),
            from_arrays("optimizer", saved.arrays, state.optimizer),
        )
    elif log.exists():
        log.unlink()
    players = [Players.start(options, seed, first, steps, place) for place in range(options.players)]
    started_s = saved_s = time.monotonic()

    def keep(step: int) -> None:
        arrays = to_arrays("parameters", state.parameters) | to_arrays("optimizer", state.optimizer)
        save_checkpoint(folder, Checkpoint({"seed": seed}, {"step": step}, arrays))
        card = {"visits": step * options.graphs_per_step, "seed": seed}
        save_policy(options.out / f"seed-{seed}.safetensors", learner.policy(state), card, "bfloat16")

    def score(step: int) -> None:
        keep(step)
        scores = by_lesson(learner.policy(state), settings, seed)
        spent_s = time.monotonic() - started_s
        line = {"visits": step * options.graphs_per_step, "scores": scores, "elapsed_s": round(spent_s, 1)}
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    if first == 0:
        score(0)
    for step in range(first, steps):
        features = [each for player in players for each in player.features()]
        cases = [_Described(each) for each in features]
        bucket = common_bucket(cases)
        outputs = learner.outputs(state, cases, bucket)
        gradients = []
        share = len(cases) // len(players)
        for i, player in enumerate(players):
            player.send(outputs[i * share : (i + 1) * share])
        for player in players:
            gradients += player.gradients()
        state, _ = learner.update(state, cases, bucket, gradients)
        is_late = time.monotonic() - started_s > options.seconds
        if (step + 1) % every == 0 or step + 1 == steps or is_late:
            score(step + 1)
        elif time.monotonic() - saved_s > 20.0:
            keep(step + 1)
            saved_s = time.monotonic()
        if is_late:
            break
    for player in players:
        player.close()


class _Described:
    """What the learner needs of a case that another process plays."""

    def __init__(self, features: GraphFeatures) -> None:
        from go_opt.agents.inputs.padding import smallest_bucket

        self.features, self.bucket = features, smallest_bucket(features)


class Players:
    """A process that plays its share of the graphs of every step."""

    def __init__(self, process: Any, connection: Connection) -> None:
        self._process, self._connection = process, connection

    @staticmethod
    def start(options: argparse.Namespace, seed: int, first: int, steps: int, place: int) -> Players:
        spawn = get_context("spawn")
        here, there = spawn.Pipe()
        process = spawn.Process(target=play, args=(options, seed, first, steps, place, there), daemon=True)
        process.start()
        return Players(process, here)

    def features(self) -> list[GraphFeatures]:
        received: list[GraphFeatures] = self._connection.recv()
        return received

    def send(self, outputs: list[Outputs]) -> None:
        self._connection.send([Outputs(*(part.astype(np.float32) for part in each)) for each in outputs])

    def gradients(self) -> list[Outputs]:
        received: list[Outputs] = self._connection.recv()
        return received

    def close(self) -> None:
        self._process.terminate()
        self._process.join()


def play(
    options: argparse.Namespace, seed: int, first: int, steps: int, place: int, main: Connection
) -> None:
    """Draw the cases of each step, and answer the network's outputs with the gradients of their loss."""
    os.environ["JAX_PLATFORMS"] = "cpu"  # the network's process has the GPU
    from go_opt.agents.training.problems.environment import LocalEnvironment
    from go_opt.agents.training.updates.step import lesson_seeds, play_graph

    settings = Settings(graphs_per_step=options.graphs_per_step)
    share = options.graphs_per_step // options.players
    places = range(place * share, (place + 1) * share)
    target = go_opt.target("mcm-6x6")
    graphs = [g for g in zoo_graphs("train", target, options.most_ops) if g.num_ops >= 50]
    curriculum = Curriculum(tuple(graphs), target, most_ops=options.most_ops)
    environment = LocalEnvironment()
    for step in range(first, steps):
        cases = [curriculum.draw_one(seed, step, i) for i in places]
        main.send([case.features for case in cases])
        seeds = lesson_seeds((seed, step), options.graphs_per_step, settings)
        outputs = [Outputs(*(part.astype(np.float64) for part in each)) for each in main.recv()]
        gradients = []
        for i, case, said in zip(places, cases, outputs, strict=True):
            session = environment.open(case.instance.graph, case.instance.target)
            gradient = play_graph(case, said, session, settings, seeds[i]).gradient
            gradients.append(Outputs(*(part.astype(np.float32) for part in gradient)))
        main.send(gradients)


def by_lesson(
    policy: Any, settings: Settings, seed: int, split: Literal["validation", "test"] = "validation"
) -> dict[str, float]:
    """The score of each lesson on a split."""
    from go_opt.agents.training.problems.cases import case
    from go_opt.agents.training.problems.environment import LocalEnvironment
    from go_opt.agents.training.problems.sessions import Sessions
    from go_opt.agents.training.validation import validate

    target = go_opt.target("mcm-6x6")
    cases = [case(graph, target) for graph in zoo_graphs(split, target, MOST_VALIDATION_OPS)]
    with Sessions(LocalEnvironment()) as sessions:
        score = validate(policy, cases, sessions.open(cases), settings.lessons, seed)
    return {lesson: round(value, 4) for lesson, value in score.by_lesson.items()}


def print_table(options: argparse.Namespace) -> None:
    lessons: tuple[Lesson, ...] = Settings().lessons
    header(["seed", "graph visits", *(NAMES[lesson.mode] for lesson in lessons), "mean"], texts=1)
    gains = []
    for log in sorted(options.out.glob("seed-*.jsonl")):
        lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
        best = max(lines, key=lambda line: statistics.fmean(line["scores"].values()))
        for line in (lines[0], best, lines[-1]):
            scores = [line["scores"][lesson.name] for lesson in lessons]
            cells = [*(f"{each:.3f}" for each in scores), f"{statistics.fmean(scores):.3f}"]
            row([log.stem.removeprefix("seed-"), f"{line['visits']:,}", *cells])
        first, last = (statistics.fmean(lines[i]["scores"].values()) for i in (0, -1))
        gains.append(last - first)
    if gains:
        print(f"\nMedian of the gains: {statistics.median(gains):.3f}", flush=True)


def print_test(options: argparse.Namespace) -> None:
    header(["seed", "", *(NAMES[lesson.mode] for lesson in Settings().lessons), "mean"], texts=2)
    gains = []
    for file in sorted(options.out.glob("seed-*.safetensors")):
        seed = int(file.stem.removeprefix("seed-"))
        means = []
        for label, policy in (("untrained", None), ("trained", file)):
            scores = by_lesson(as_policy(policy, seed), Settings(), TEST_SEED + seed, "test").values()
            means.append(statistics.fmean(scores))
            row([str(seed), label, *(f"{each:.3f}" for each in scores), f"{means[-1]:.3f}"])
        gains.append(means[1] - means[0])
    print(f"\nMedian of the gains: {statistics.median(gains):.3f}", flush=True)


if __name__ == "__main__":
    main()
