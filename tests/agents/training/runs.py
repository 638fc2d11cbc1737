"""Runs of training as small as they come, and what is compared between them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from go_opt.agents.generator import generate_graph
from go_opt.agents.policy.network import untrained
from go_opt.agents.training.problems.environment import Evaluations, LocalEnvironment, Plans, Session
from go_opt.agents.training.problems.rollout import Lesson, Settings
from go_opt.agents.training.requests import FinetuneRequest, PretrainRequest
from go_opt.env import Target, load_target
from go_opt.model.graph import Graph
from tests.agents.training.small import CONFIG

LESSONS: Final = (
    Lesson(("schedule", "fusion"), samples=4, elites=2),
    Lesson(("placement",), samples=4, elites=2),
)
SETTINGS: Final = Settings(lessons=LESSONS, graphs_per_step=2, warm_up_updates=3)
STEPS: Final = 8


def pretraining(steps: int = STEPS, **changes: Any) -> PretrainRequest:
    """Of generated graphs on packages of all sizes."""
    fields = {
        "graphs": (),
        "validation": (generate_graph(1, num_ops=60),),
        "target": load_target("mcm-2x2"),
        "samples": steps * SETTINGS.graphs_per_step * SETTINGS.samples_per_graph,
        "settings": SETTINGS,
        "config": CONFIG,
        "generated_share": 1.0,
        "most_ops": 90,
        "validate_every": 3,
    }
    return PretrainRequest(**{**fields, **changes})


_untrained = cache(untrained)  # a fifth of a second


def finetuning(steps: int = 4, **changes: Any) -> FinetuneRequest:
    """From an untrained policy, on one generated graph."""
    fields = {
        "graph": generate_graph(2, num_ops=70),
        "target": load_target("mcm-2x2"),
        "policy": _untrained(CONFIG, 0),
        "samples": steps * SETTINGS.graphs_per_step * SETTINGS.samples_per_graph,
        "settings": SETTINGS,
    }
    return FinetuneRequest(**{**fields, **changes})


Fault = Literal["raises", "answers NaN", "opens not", "closes not"]


@dataclass(frozen=True)
class Flaky:
    """The analytical model, which fails at its ``fails_at``-th batch (session), counted from 1."""

    fails_at: int = 0  # 0: never
    fault: Fault = "raises"
    _asked: count[int] = field(default_factory=lambda: count(1))

    def open(self, graph: Graph, target: Target) -> Session:
        self.trip("opens not")
        return _FlakySession(self, LocalEnvironment().open(graph, target))

    def trip(self, fault: Fault) -> None:
        if fault == self.fault and next(self._asked) == self.fails_at:
            raise RuntimeError("the board is on fire")


@dataclass(frozen=True, eq=False)
class _FlakySession:
    _environment: Flaky
    _session: Session

    def evaluate(self, placement: Plans, order: Plans, fusion_group: Plans) -> Evaluations:
        answer = self._session.evaluate(placement, order, fusion_group)
        self._environment.trip("raises")
        try:
            self._environment.trip("answers NaN")
        except RuntimeError:
            return Evaluations(np.full_like(answer.objective_s, np.nan), answer.valid)
        return answer

    def close(self) -> None:
        self._session.close()
        self._environment.trip("closes not")


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics, without what depends on the clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    for line in lines:
        assert line.pop("elapsed_s") > 0
        assert line.pop("samples_per_s") > 0
    return lines


def ended_alike(folder: Path, other: Path) -> bool:
    """Whether two runs left the same policy, byte by byte, and the same metrics."""
    policies = [(each / "policy.safetensors").read_bytes() for each in (folder, other)]
    return policies[0] == policies[1] and metrics(folder) == metrics(other)
