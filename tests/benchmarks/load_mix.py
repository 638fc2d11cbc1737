"""What the clients of a loaded service ask: every kind of call, for graphs of 100 to 5,000 ops."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

import go_opt
from go_opt.env import load_zoo
from go_opt.model.codecs.wire import graph_to_proto, plan_to_proto
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.proto import environment_pb2, optimizer_pb2, plan_pb2
from go_opt.service.environment.remote_environment import PlanWriter

TARGET = "mcm-6x6"
# By ops, each class as often as the next.
SIZES = {
    "100 to 300": ("deeplab_v3_mobilenet_v2", "xception", "resnet50"),
    "300 to 1,000": ("bert_base", "inception_v3", "densenet121", "resnet152"),
    "1,000 to 2,000": ("pythia_410m", "nasnet_mobile", "mobilebert"),
    "2,000 to 5,000": ("s5_listops", "transformer_xl_8", "rwkv_169m"),
}
KINDS = {
    "Optimize, 4 evaluations": 0.35,
    "Optimize, 0.3 s": 0.1,
    "Optimize, 2 s, with the policy": 0.03,
    "OptimizeStream, 8 evaluations": 0.12,
    "Evaluate": 0.25,
    "Environment, 4 batches of 16": 0.15,
}
BATCHES, BATCH_PLANS, BROKEN_PLANS = 4, 16, 4
_SEARCHES = {
    "Optimize, 4 evaluations": optimizer_pb2.OptimizeRequest(max_evaluations=4, policy="none"),
    "Optimize, 0.3 s": optimizer_pb2.OptimizeRequest(budget_s=0.3, policy="none"),
    "Optimize, 2 s, with the policy": optimizer_pb2.OptimizeRequest(budget_s=2.0),
    "OptimizeStream, 8 evaluations": optimizer_pb2.OptimizeRequest(max_evaluations=8, policy="none"),
}
_REPEATED = 0.1  # of all searches: asked before, and answered from the cache


@dataclass(frozen=True, eq=False)
class Subject:
    """A graph with a plan that needs neither replication nor relays, as messages."""

    size: str
    graph: Graph
    plan: Plan
    interval_s: float
    graph_field: bytes  # field 1 of every request; the others are appended
    evaluate_request: bytes
    batch: environment_pb2.EvaluateBatchRequest

    @classmethod
    def load(cls, name: str, size: str) -> Subject:
        """A graph of the zoo."""
        graph = load_zoo(name)
        found = go_opt.optimize(
            graph, TARGET, max_evaluations=2, policy=None, replication=False, relays=False
        )
        field = optimizer_pb2.EvaluateRequest(graph=graph_to_proto(graph)).SerializeToString()
        rest = optimizer_pb2.EvaluateRequest(
            target=plan_pb2.Target(name=TARGET), plan=plan_to_proto(found.plan)
        )
        return cls(
            size,
            graph,
            found.plan,
            found.metrics.interval_s,
            field,
            field + rest.SerializeToString(),
            _batch(found.plan),
        )


def subjects() -> list[Subject]:
    """All graphs of the mix."""
    return [Subject.load(name, size) for size, names in SIZES.items() for name in names]


@dataclass(frozen=True, eq=False)
class Ask:
    """One call of the mix."""

    kind: str
    subject: Subject
    request: bytes

    @classmethod
    def draw(cls, every: list[Subject], seed: int, draw: random.Random) -> Ask:
        """One at random; searches have the seed, or one of few that were asked before."""
        kind = draw.choices(list(KINDS), list(KINDS.values()))[0]
        size = draw.choice(list(SIZES))
        subject = draw.choice([subject for subject in every if subject.size == size])
        if kind == "Evaluate":
            return cls(kind, subject, subject.evaluate_request)
        if kind.startswith("Environment"):
            session = environment_pb2.CreateSessionRequest(target=plan_pb2.Target(name=TARGET))
            return cls(kind, subject, subject.graph_field + session.SerializeToString())
        search = optimizer_pb2.OptimizeRequest()
        search.CopyFrom(_SEARCHES[kind])
        search.target.name = TARGET
        search.seed = 0 if draw.random() < _REPEATED else seed
        return cls(kind, subject, subject.graph_field + search.SerializeToString())


def _batch(plan: Plan) -> environment_pb2.EvaluateBatchRequest:
    """Plans as a policy proposes them: most keep the rules, some have ops on any chip."""
    rng = np.random.default_rng(0)
    placement = np.tile(plan.placement, (BATCH_PLANS, 1))
    broken = placement[-BROKEN_PLANS:]
    broken[:, :8] = rng.integers(0, plan.placement.max() + 1, (BROKEN_PLANS, 8))
    order, group = (np.tile(array, (BATCH_PLANS, 1)) for array in (plan.order, plan.fusion_group))
    request = environment_pb2.EvaluateBatchRequest()
    PlanWriter(plan).write(request, (placement, order, group))
    return request
