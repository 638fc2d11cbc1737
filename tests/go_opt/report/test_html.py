"""A page needs nothing from elsewhere, and no name can become a part of it that is not text."""

from __future__ import annotations

import json
import re

import pytest

import go_opt
from go_opt.report.page import node_data_text, subject_of
from go_opt.report.page.facts import colour
from go_opt.report.page.page import PLAN, STEP, escaped_json, page_text
from tests.go_opt.report.pages import chain_of, data_of, read_page
from tests.strategies import make_plan, small_mcm, toy_graph

NASTY = (
    "</script><script>alert(1)</script>", "<!--", "-->", "<img src=x onerror=alert(1)>", "\"quoted' `name`",
    "&lt;b&gt;", "\u2028line", "ünï/cödé 🙂", "@@data@@", "${name}", "</style>", "]]>", "\\u003c",
    "long" * 100,
)  # fmt: skip


def nasty_page() -> str:
    graph, target = chain_of(*NASTY), small_mcm(2)
    return go_opt.plan_page(graph, target, make_plan(graph, target, [0] * 6 + [1] * (len(NASTY) - 6)))


def test_names_are_text() -> None:
    page, plain = read_page(nasty_page()), read_page(page_text({}))
    assert page.elements[:3] == plain.elements[:3]
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements]
    data = json.loads(page.scripts["application/json"])
    assert tuple(data["ops"]["name"]) == NASTY
    assert data["title"] == f"{NASTY[0]} on small-mcm"
    assert page.scripts["module"] == plain.scripts["module"]


@pytest.mark.parametrize("name", NASTY)
def test_escaped_json(name: str) -> None:
    text = escaped_json({name: [name]})
    assert text.isascii()
    assert not set("<>&") & set(text)
    assert json.loads(text) == {name: [name]}


def test_a_page_is_whole() -> None:
    """Nothing is loaded; the one address in it is the name of SVG's elements."""
    graph, target = toy_graph(), small_mcm(2)
    text = go_opt.plan_page(graph, target, make_plan(graph, target, [0, 0, 0, 1, 1, 1]))
    assert set(re.findall(r"\w+://[^\"'\s]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|WebSocket|import\(|\beval\(|innerHTML", text)
    for tag, attributes in read_page(text).elements:
        assert tag not in ("link", "img", "iframe", "object", "base", "form")
        assert not {"src", "href", "style"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
    policies = [of.get("http-equiv") for _, of in read_page(text).elements if "default-src 'none'" in str(of)]
    assert policies == ["Content-Security-Policy"]
    assert len(text) < 100_000 + len(json.dumps(data_of(text)))


def test_every_script_is_in_the_page() -> None:
    from importlib.resources import files

    names = {path.name for path in files("go_opt.report.page.assets").iterdir() if path.name.endswith(".js")}
    assert names == {f"{name}.js" for name in (*PLAN.scripts, *STEP.scripts)}


def test_node_data_for_model_explorer() -> None:
    """As google-ai-edge/model-explorer's GraphNodeData has it: results by node id."""
    graph, target = toy_graph(), small_mcm(2)
    subject = subject_of(graph, target, make_plan(graph, target, [0, 0, 0, 1, 1, 1]), "throughput")
    data = json.loads(node_data_text(subject))
    assert {name: row["value"] for name, row in data["results"].items()} == {
        "embed": "chip 0", "dense": "chip 0", "relu": "chip 0",
        "mix": "chip 1", "add": "chip 1", "logits": "chip 1",
    }  # fmt: skip
    colours = [colour(i) for i in range(len(subject.stages))]
    assert [data["results"][name]["bgColor"] for name in ("embed", "mix")] == colours
    assert all(re.fullmatch("#[0-9a-f]{6}", one) for one in colours)
    assert colours[0] != colours[1]
