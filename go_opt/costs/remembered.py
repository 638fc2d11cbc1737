"""The measured costs that a plan file records."""

from __future__ import annotations

import hashlib
from pathlib import Path

from go_opt.common.files import read_json
from go_opt.errors import PlanError
from go_opt.model.graph import Graph


def costs_fingerprint(graph: Graph) -> str:
    """SHA-256 of the measured costs of a graph, in op order, and of the kinds that cannot run an op."""
    digest = hashlib.sha256(b"go_opt.v1.Costs")
    for mapping in (graph.measured_s, graph.excluded):
        for kind in sorted(mapping):
            digest.update(kind.encode() + b"\0" + mapping[kind].tobytes())
        digest.update(b"\1")
    return digest.hexdigest()


def costs_fact(graph: Graph, costs: Path | None) -> dict[str, dict[str, str]]:
    """The entry of a plan file about the costs it was made with; empty if there were none."""
    if costs is None:
        return {}
    return {"costs": {"file": str(costs), "fingerprint": costs_fingerprint(graph)}}


def check_remembered(plan: Path, graph: Graph, costs: Path | None) -> None:
    """Raise :class:`PlanError` if a plan file says that the plan was made with other costs."""
    data = read_json(plan, "plan file", PlanError)
    fact = data.get("costs") if isinstance(data, dict) else None
    if not isinstance(fact, dict) or fact.get("fingerprint") == costs_fingerprint(graph):
        return
    file, made_with = str(fact.get("file"))[:200], str(fact.get("fingerprint"))[:12]
    says = f"plan file {str(plan)!r}: the plan was made with the measured costs {file!r} ({made_with})"
    if costs is None:
        raise PlanError(f"{says}; give them with --costs.", field="costs")
    others = f"{str(costs)!r} gives this graph others ({costs_fingerprint(graph)[:12]})"
    raise PlanError(f"{says}, and {others}; give --costs {file}.", field="costs")
