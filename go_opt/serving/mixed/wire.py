"""Converts searches for ranges of layers, and what they find, to and from their messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from go_opt.common.files import read_text
from go_opt.errors import InvalidInputError, ServiceError, TargetError
from go_opt.parallel.wire.steps import transformer_from_proto
from go_opt.proto import optimizer_pb2, plan_pb2, step_pb2
from go_opt.service.messages.convert import message_of
from go_opt.service.messages.requests import request_part
from go_opt.serving.mixed.cluster import Case, parse_cluster
from go_opt.serving.mixed.plan import RangePlan, plan_of
from go_opt.serving.mixed.search import plan_ranges

_OF_SEARCH: Final = ("ranges", "target", "budget_s", "seed")  # fields of a request for ranges


def request_of(
    model: str, cluster: str | Path, budget_s: float, seed: int
) -> tuple[Case, optimizer_pb2.OptimizeRequest]:
    """The problem and the request for it; raises if model or cluster is malformed."""
    case = Case.read(model, cluster)
    text = read_text(cluster, "target file", TargetError)
    return case, optimizer_pb2.OptimizeRequest(
        target=plan_pb2.Target(toml=text, toml_source=str(cluster)),
        budget_s=budget_s,
        seed=seed,
        ranges=step_pb2.LayerRanges(model=step_pb2.Transformer(**vars(case.model))),
    )


def answer_search(
    message: optimizer_pb2.OptimizeRequest, budget_s: float, should_stop: Callable[[], bool]
) -> tuple[optimizer_pb2.OptimizeResponse, bool]:
    """The best ranges of layers, and whether no longer search finds better ones.

    Raises:
      InvalidInputError: the request is malformed.
      InfeasibleError: no ranges were found.
    """
    for field, _ in message.ListFields():
        if field.name not in _OF_SEARCH:
            raise InvalidInputError(f"{field.name} is not for ranges of layers.", field=field.name)
    model = transformer_from_proto(message.ranges.model, "ranges.model")
    with request_part("target"):
        cluster = parse_cluster(message.target.toml, message.target.toml_source or "inline")
    found = plan_ranges(Case(model, cluster), budget_s, message.seed, should_stop)
    ends = zip(found.starts.tolist(), found.ends.tolist(), strict=True)
    nodes = [step_pb2.NodeRange(start=start, end=end) for start, end in ends]
    ranges = message_of(found, step_pb2.RangesAnswer, nodes=nodes)
    response = message_of(found, optimizer_pb2.OptimizeResponse, seed=message.seed, ranges=ranges)
    return response, found.status == "OPTIMAL"


def found_from_proto(message: optimizer_pb2.OptimizeResponse, case: Case) -> RangePlan:
    """What a search found. The flow is that of this go-opt, and the ranges are checked.

    Raises:
      ServiceError: the ranges are not of the cluster, or not valid.
    """
    ranges = np.array([(one.start, one.end) for one in message.ranges.nodes], np.int64).reshape(-1, 2)
    if len(ranges) != case.cluster.num_nodes or ((ranges < 0) | (ranges > case.layers)).any():
        raise ServiceError("the answer has ranges that are not of this model and cluster.")
    held = np.minimum(ranges[:, 1] - ranges[:, 0], case.most_held)
    bound = message.ranges.bound_per_s
    plan = plan_of(case, ranges[:, 0], ranges[:, 0] + held, bound, message.evaluations, message.wall_s)
    broken = plan.verify()
    if broken:
        raise ServiceError(f"the answer is not valid: {broken[0].message}")
    return plan
