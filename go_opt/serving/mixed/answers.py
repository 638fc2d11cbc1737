"""What commands ask about ranges of layers: JSON, lines, files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from go_opt.common.files import read_json, write_atomically
from go_opt.common.outputs import PLAN
from go_opt.common.units import format_ratio
from go_opt.errors import InvalidInputError, PlanError
from go_opt.parallel.transformer import parse_transformer
from go_opt.serving.mixed.bound import upper_bound
from go_opt.serving.mixed.checks import check_ranges
from go_opt.serving.mixed.cluster import Case, load_cluster
from go_opt.serving.mixed.search import RangePlan, plan_of, plan_ranges
from go_opt.solver import Violation

_HELIX: Final = ".ini"
_VLLM: Final = ".env"
_OFFSET: Final = 2  # of Helix's nodes: 0 is its coordinator's source, 1 the sink


@dataclass(frozen=True)
class RangeAnswer:
    """Ranges, and the text of their model."""

    plan: RangePlan
    model: str

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of ``--json``; layers are ``[start, end)``."""
        plan, cluster = self.plan, self.plan.case.cluster
        ends = [*cluster.node_names, "source", "sink"]
        through = plan.flow_per_s[: cluster.num_nodes].sum(axis=1)
        return {
            "objective": "throughput",
            "model": self.model,
            "target": cluster.name,
            "status": plan.status,
            "throughput_per_s": plan.throughput_per_s,
            "bound_per_s": plan.bound_per_s,
            "gap": plan.gap,
            "nodes": [
                {
                    "name": name,
                    "kind": cluster.kinds[cluster.kind_of[i]].name,
                    "layers": [int(plan.starts[i]), int(plan.ends[i])],
                    "tokens_per_s": float(through[i]),
                    "limit_per_s": float(plan.case.node_per_s[i, plan.ends[i] - plan.starts[i]]),
                }
                for i, name in enumerate(cluster.node_names)
            ],
            "links": [
                {"between": [ends[i], ends[j]], "tokens_per_s": float(plan.flow_per_s[i, j])}
                for i, j in zip(*plan.flow_per_s.nonzero(), strict=True)
            ],
            "evaluations": plan.evaluations,
            "wall_s": plan.wall_s,
        }

    def lines(self) -> Iterator[str]:
        """Nodes with the same range and kind share a line."""
        plan, cluster = self.plan, self.plan.case.cluster
        yield f"plan        {plan.throughput_per_s:,.1f} tokens/s of {self.model} on {cluster.name}"
        yield f"bound       {plan.bound_per_s:,.1f} tokens/s: no ranges of layers pass more"
        how = f"{plan.evaluations:,} trials in {plan.wall_s:.1f} s"
        yield f"status      {plan.status}, gap {format_ratio(plan.gap)}, {how}"
        alike: Counter[tuple[int, int, str]] = Counter()
        flow: Counter[tuple[int, int, str]] = Counter()
        for i, (start, end) in enumerate(zip(plan.starts.tolist(), plan.ends.tolist(), strict=True)):
            key = start, end, cluster.kinds[cluster.kind_of[i]].name
            alike[key] += 1
            flow[key] += plan.flow_per_s[i].sum()
        for key in sorted(alike):
            start, end, kind = key
            if start < end:
                yield f"layers      {start:>3} to {end:<3} {alike[key]} x {kind}: {flow[key]:,.1f} tokens/s"
        idle = Counter(kind for (start, end, kind), n in alike.items() if start == end for _ in range(n))
        if idle:
            yield f"idle        {', '.join(f'{n} x {kind}' for kind, n in sorted(idle.items()))}"

    def save(self, path: Path) -> None:
        """Write the plan: JSON, or where the name ends in ``.ini`` or ``.env`` the form of Helix or vLLM.

        Raises:
          InvalidInputError: vLLM has no such plan, or the path cannot be written to.
        """
        texts = {_HELIX: helix_text, _VLLM: vllm_text}
        if path.suffix in texts:
            write_atomically(path, texts[path.suffix](self.plan))
            return
        cluster = self.plan.case.cluster
        facts = {"format": PLAN.json_format, "form": "ranges", "target": cluster.source}
        data = self.to_dict() | facts | {"target_fingerprint": cluster.fingerprint}
        write_atomically(path, json.dumps(data, ensure_ascii=False) + "\n")

    def verify(self) -> list[Violation]:
        return check_ranges(self.plan)

    @property
    def valid_text(self) -> str:
        """What ``verify`` says of a valid plan."""
        return f"valid: {self.plan.throughput_per_s:,.1f} tokens/s on {self.plan.case.cluster.name}."


def helix_text(plan: RangePlan) -> str:
    """The ``ilp_sol.ini`` of Helix, which its simulator and its runtime read; idle nodes hold no layer."""
    rows = [
        f"compute_node_{_OFFSET + i}={list(range(start, end))}"
        for i, (start, end) in enumerate(zip(plan.starts.tolist(), plan.ends.tolist(), strict=True))
    ]
    return "\n".join(["[Settings]", f"offset={_OFFSET}", "", "[Solution]", *rows, ""])


def vllm_text(plan: RangePlan) -> str:
    """The variable by which vLLM cuts a model: layers of each rank of a pipeline, or of several alike.

    Raises:
      InvalidInputError: the ranges are not those of such pipelines.
    """
    rows = zip(plan.starts.tolist(), plan.ends.tolist(), strict=True)
    held = Counter(row for row in rows if row[0] < row[1])
    ranges = sorted(held)
    follow = [0, *(end for _, end in ranges)] == [*(start for start, _ in ranges), plan.case.layers]
    if not follow or len(set(held.values())) > 1:
        problem = "its nodes hold ranges that overlap, or one range is held by more nodes than another"
        raise InvalidInputError(f"vLLM has no pipeline like this plan: {problem}.", field="out")
    return f"VLLM_PP_LAYER_PARTITION={','.join(str(end - start) for start, end in ranges)}\n"


def searched_ranges(
    model: str, target: str, budget_s: float, seed: int, should_stop: Callable[[], bool]
) -> RangeAnswer:
    """The best ranges of ``model`` on the cluster file ``target``, checked."""
    plan = plan_ranges(Case(parse_transformer(model), load_cluster(target)), budget_s, seed, should_stop)
    broken = check_ranges(plan)
    assert not broken, broken
    return RangeAnswer(plan, model)


def is_range_plan(path: Path) -> bool:
    """Whether a plan file is one of ranges; False if it cannot be read."""
    try:
        data = read_json(path, "plan file", PlanError)
    except PlanError:
        return False
    return isinstance(data, dict) and data.get("form") == "ranges"


def loaded_ranges(path: Path, model: str, target: str | None) -> RangeAnswer:
    """The plan of a file, whose flow is computed anew.

    Raises:
      PlanError: it is malformed, or of another target or model.
    """
    data = read_json(path, "plan file", PlanError)
    what = f"plan file {str(path)!r}"
    source = target or data.get("target")
    if not isinstance(source, str):
        raise PlanError(f"{what}: target must be a text.", field="target")
    case = Case(parse_transformer(model), load_cluster(source))
    if data.get("target_fingerprint") != case.cluster.fingerprint:
        raise PlanError(f"{what} is of another target than {case.cluster.name!r}.", field="target")
    starts, ends = _ranges(data.get("nodes"), case, what)
    return RangeAnswer(plan_of(case, starts, ends, upper_bound(case)), model)


def _ranges(rows: Any, case: Case, what: str) -> np.ndarray:
    if not isinstance(rows, list) or len(rows) != case.cluster.num_nodes:
        raise PlanError(f"{what}: nodes must be the {case.cluster.num_nodes} of the target.", field="nodes")
    found = []
    for row, most in zip(rows, case.most_held.tolist(), strict=True):
        layers = row.get("layers") if isinstance(row, dict) else None
        if not (isinstance(layers, list) and len(layers) == 2 and all(type(n) is int for n in layers)):
            raise PlanError(f"{what}: layers of a node must be two whole numbers.", field="nodes")
        if not 0 <= layers[0] <= layers[1] <= case.layers or layers[1] - layers[0] > most:
            held = f"layers {layers[0]} to {layers[1]}"
            raise PlanError(f"{what}: a node holds {held}, at most {most} of {case.layers}.", field="nodes")
        found.append(layers)
    return np.array(found, np.int64).T.copy()
