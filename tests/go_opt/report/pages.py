"""Pages read back, and plans to make them of."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

import numpy as np

import go_opt
from go_opt.env import Target
from go_opt.errors import InfeasibleError
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.report.page import Claims, subject_of
from go_opt.report.page.facts import Subject
from go_opt.report.page.page import page_data
from tests.copies import with_legal_relays
from tests.replicated import random_stages, replicated_plan
from tests.strategies import random_graph, random_plan, random_simulated_target, random_target


class _Page(HTMLParser):
    """Elements with their attributes, and the text of scripts by type."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self._type = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._type = dict(attrs).get("type") or "" if tag == "script" else ""

    def handle_endtag(self, tag: str) -> None:
        self._type = ""

    def handle_data(self, text: str) -> None:
        if self._type:
            self.scripts[self._type] = self.scripts.get(self._type, "") + text


def read_page(text: str) -> _Page:
    """What a browser sees of a page before its script runs."""
    page = _Page()
    page.feed(text)
    page.close()
    return page


def data_of(text: str) -> Any:
    """The data of a page."""
    return json.loads(read_page(text).scripts["application/json"])


def page_rows(subject: Subject, claims: Claims | None = None, inferences: int | None = None) -> Any:
    """The data of a page as a browser gets it."""
    data = page_data(subject, claims or Claims(), inferences)
    return json.loads(json.dumps(data, allow_nan=False))


def random_subject(rng: np.random.Generator, objective: str = "throughput") -> Subject | None:
    """A random plan with stages or copies, where it keeps every rule; None where it does not."""
    if rng.random() < 0.5:  # chips of one kind, which may be replicas
        target = random_target(rng, topology="ring", num_kinds=1, num_chips=int(rng.integers(2, 9)))
    else:
        target = random_simulated_target(rng)
    graph = random_graph(rng, int(rng.integers(2, 25)))
    plan = _random_plan(rng, graph, target)
    try:
        return subject_of(graph, target, plan, objective)  # type: ignore[arg-type]
    except InfeasibleError:
        assert go_opt.verify(graph, target, plan)
        return None


def _random_plan(rng: np.random.Generator, graph: Graph, target: Target) -> Plan:
    plan = random_plan(rng, graph, target, monotone=True, fusion="legal")
    if target.topology.is_ring:
        stage_of_op, sizes = random_stages(rng, plan.order, plan.fusion_group, target.num_chips)
        kept = {"order": plan.order, "fusion_group": plan.fusion_group}
        plan = replicated_plan(graph, target, stage_of_op, sizes, **kept)
    return with_legal_relays(graph, target, plan) if rng.random() < 0.7 else plan


def chain_of(*names: str, elements: int = 1000) -> Graph:
    """Element-wise ops in a row, by name."""
    builder = GraphBuilder(names[0])
    builder.add_tensor("t0", elements, "float32", "input")
    for i, name in enumerate(names, start=1):
        reads, writes = [(f"t{i - 1}", None)], [(f"t{i}", elements, "float32")]
        builder.add_op(name, "Relu", "vector", flops=1e6, dtype="float32", reads=reads, writes=writes)
    builder.mark_output(f"t{len(names)}")
    return builder.build()
