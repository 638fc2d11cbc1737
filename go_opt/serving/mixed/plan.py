"""Ranges of layers by node: as JSON, lines and files, and their independent check.

The check is of plain loops, and the maximum flow of networkx.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import networkx as nx
import numpy as np

from go_opt.common.arrays import FloatArray, LongArray
from go_opt.common.files import read_json, write_atomically
from go_opt.common.outputs import PLAN
from go_opt.common.units import format_ratio
from go_opt.errors import InvalidInputError, PlanError
from go_opt.result import OPTIMAL_GAP
from go_opt.serving.mixed.bound import upper_bound
from go_opt.serving.mixed.cluster import Case
from go_opt.serving.mixed.flow import Network, max_flow, new_work
from go_opt.solver import Violation

_HELIX: Final = ".ini"
_VLLM: Final = ".env"
_OFFSET: Final = 2  # of Helix's nodes: 0 is its coordinator's source, 1 the sink
_TOLERANCE: Final = 1e-6  # relative, of a flow


@dataclass(frozen=True, eq=False)
class RangePlan:
    """Ranges of layers by node, and the tokens that flow. Axes as in :class:`Case`."""

    case: Case
    starts: LongArray  # [N]
    ends: LongArray  # [N]: equal to the start of a node without tokens
    flow_per_s: FloatArray  # [N + 2, N + 2]: tokens per second of links
    bound_per_s: float
    evaluations: int
    wall_s: float

    @property
    def throughput_per_s(self) -> float:
        """Tokens per second."""
        return float(self.flow_per_s[self.case.cluster.num_nodes].sum())

    @property
    def gap(self) -> float:
        return max(0.0, self.bound_per_s / self.throughput_per_s - 1.0)

    @property
    def status(self) -> str:
        return "OPTIMAL" if self.gap <= OPTIMAL_GAP else "FEASIBLE"

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of ``--json``; layers are ``[start, end)``."""
        cluster = self.case.cluster
        ends = [*cluster.node_names, "source", "sink"]
        through = self.flow_per_s[: cluster.num_nodes].sum(axis=1)
        return {
            "objective": "throughput",
            "model": self.case.text,
            "target": cluster.name,
            "status": self.status,
            "throughput_per_s": self.throughput_per_s,
            "bound_per_s": self.bound_per_s,
            "gap": self.gap,
            "nodes": [
                {
                    "name": name,
                    "kind": cluster.kinds[cluster.kind_of[i]].name,
                    "layers": [int(self.starts[i]), int(self.ends[i])],
                    "tokens_per_s": float(through[i]),
                    "limit_per_s": float(self.case.node_per_s[i, self.ends[i] - self.starts[i]]),
                }
                for i, name in enumerate(cluster.node_names)
            ],
            "links": [
                {"between": [ends[i], ends[j]], "tokens_per_s": float(self.flow_per_s[i, j])}
                for i, j in zip(*self.flow_per_s.nonzero(), strict=True)
            ],
            "evaluations": self.evaluations,
            "wall_s": self.wall_s,
        }

    def lines(self) -> Iterator[str]:
        """Nodes with the same range and kind share a line."""
        cluster = self.case.cluster
        yield f"plan        {self.throughput_per_s:,.1f} tokens/s of {self.case.text} on {cluster.name}"
        yield f"bound       {self.bound_per_s:,.1f} tokens/s: no ranges of layers pass more"
        how = f"{self.evaluations:,} trials in {self.wall_s:.1f} s"
        yield f"status      {self.status}, gap {format_ratio(self.gap)}, {how}"
        alike: Counter[tuple[int, int, str]] = Counter()
        flow: Counter[tuple[int, int, str]] = Counter()
        for i, (start, end) in enumerate(zip(self.starts.tolist(), self.ends.tolist(), strict=True)):
            key = start, end, cluster.kinds[cluster.kind_of[i]].name
            alike[key] += 1
            flow[key] += self.flow_per_s[i].sum()
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
            write_atomically(path, texts[path.suffix](self))
            return
        cluster = self.case.cluster
        facts = {"format": PLAN.json_format, "form": "ranges", "target": cluster.source}
        data = self.to_dict() | facts | {"target_fingerprint": cluster.fingerprint}
        write_atomically(path, json.dumps(data, ensure_ascii=False) + "\n")

    def verify(self) -> list[Violation]:
        """What the plan breaks: ranges, rates of nodes and links, and whether the flow is what it claims."""
        return [*_range_faults(self), *_flow_faults(self)] or [*_throughput_faults(self)]

    @property
    def valid_text(self) -> str:
        """What ``verify`` says of a valid plan."""
        return f"valid: {self.throughput_per_s:,.1f} tokens/s on {self.case.cluster.name}."


def network_of(case: Case) -> Network:
    return Network(case.node_per_s, case.link_per_s, case.most_held, case.layers)


def plan_of(
    case: Case,
    starts: LongArray,
    ends: LongArray,
    bound_per_s: float,
    evaluations: int = 1,
    wall_s: float = 0.0,
) -> RangePlan:
    """The plan of given ranges with their maximum flow; nodes without flow hold no layers."""
    network = network_of(case)
    work = new_work(network)
    max_flow(starts, ends, network, work)
    ends = np.where(work.through > 0.0, ends, starts)
    return RangePlan(case, starts, ends, work.flow, bound_per_s, evaluations, wall_s)


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


def is_range_plan(path: Path) -> bool:
    """Whether a plan file is one of ranges; False if it cannot be read."""
    try:
        data = read_json(path, "plan file", PlanError)
    except PlanError:
        return False
    return isinstance(data, dict) and data.get("form") == "ranges"


def loaded_ranges(path: Path, model: str, target: str | None) -> RangePlan:
    """The plan of a file, whose flow is computed anew.

    Raises:
      PlanError: it is malformed, or of another target or model.
    """
    data = read_json(path, "plan file", PlanError)
    what = f"plan file {str(path)!r}"
    source = target or data.get("target")
    if not isinstance(source, str):
        raise PlanError(f"{what}: target must be a text.", field="target")
    case = Case.read(model, source)
    if data.get("target_fingerprint") != case.cluster.fingerprint:
        raise PlanError(f"{what} is of another target than {case.cluster.name!r}.", field="target")
    starts, ends = _ranges(data.get("nodes"), case, what)
    return plan_of(case, starts, ends, upper_bound(case))


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


def _range_faults(plan: RangePlan) -> Iterator[Violation]:
    for name, start, end, most in zip(
        plan.case.cluster.node_names, plan.starts, plan.ends, plan.case.most_held, strict=True
    ):
        if not 0 <= start <= end <= plan.case.layers:
            yield Violation("layers", f"node {name} holds layers {start} to {end} of {plan.case.layers}.")
        elif end - start > most:
            yield Violation("layers", f"node {name} holds {end - start} layers, at most {most} fit.")


def _flow_faults(plan: RangePlan) -> Iterator[Violation]:
    names, nodes = plan.case.cluster.node_names, plan.case.cluster.num_nodes
    for i, j in zip(*plan.flow_per_s.nonzero(), strict=True):
        flow = plan.flow_per_s[i, j]
        ends = (0 if i == nodes else plan.ends[i]), (plan.case.layers if j > nodes else plan.starts[j])
        named = f"{names[i] if i < nodes else 'source'} to {names[j] if j < nodes else 'sink'}"
        if ends[0] != ends[1]:
            yield Violation("flow", f"{named}: layers {ends[0]} and {ends[1]} do not follow each other.")
        if not 0.0 <= flow <= plan.case.link_per_s[i, j] * (1 + _TOLERANCE):
            yield Violation("link", f"{named}: {flow:.6g} tokens/s of {plan.case.link_per_s[i, j]:.6g}.")
    for node, name in enumerate(names):
        passed, left = plan.flow_per_s[:, node].sum(), plan.flow_per_s[node].sum()
        most = plan.case.node_per_s[node, plan.ends[node] - plan.starts[node]]
        if abs(passed - left) > _TOLERANCE * max(passed, left):
            yield Violation("flow", f"node {name}: {passed:.6g} tokens/s enter, {left:.6g} leave.")
        if passed > most * (1 + _TOLERANCE):
            yield Violation("node", f"node {name}: {passed:.6g} tokens/s of {most:.6g}.")


def _throughput_faults(plan: RangePlan) -> Iterator[Violation]:
    most = networkx_flow(plan)
    if abs(most - plan.throughput_per_s) > _TOLERANCE * most:
        yield Violation("flow", f"{plan.throughput_per_s:.6g} tokens/s, the ranges pass {most:.6g}.")
    if most > plan.bound_per_s * (1 + _TOLERANCE):
        yield Violation("bound", f"{most:.6g} tokens/s, above the bound {plan.bound_per_s:.6g}.")


def networkx_flow(plan: RangePlan) -> float:
    """The maximum flow of the plan's ranges."""
    case, nodes = plan.case, plan.case.cluster.num_nodes
    graph = nx.DiGraph()
    graph.add_nodes_from([(nodes, "out"), (nodes + 1, "in")])
    ends, starts = [*plan.ends.tolist(), 0], [*plan.starts.tolist(), -1, case.layers]
    for i in range(nodes):
        if ends[i] > starts[i]:
            graph.add_edge((i, "in"), (i, "out"), capacity=float(case.node_per_s[i, ends[i] - starts[i]]))
    for i in range(nodes + 1):
        for j in range(nodes + 2):
            if ends[i] == starts[j] and case.link_per_s[i, j] > 0.0:
                graph.add_edge((i, "out"), (j, "in"), capacity=float(case.link_per_s[i, j]))
    return float(nx.maximum_flow_value(graph, (nodes, "out"), (nodes + 1, "in")))
