"""Pages opened in a real browser: no error, nothing fetched, drawings that show the stages, a search."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import go_opt
from tests.cli.conftest import chain
from tests.go_opt.report.browser import NAMES, Browser, browser, find_browser
from tests.go_opt.report.test_html import NASTY, nasty_page
from tests.strategies import make_plan

PROGRAM = find_browser()
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason=f"no browser to open pages in: none of {', '.join(NAMES)} is on the PATH"
)
# Colours of a canvas that are neither see-through nor grey: those of stages.
COLOURS = """(id => {
  const canvas = document.getElementById(id);
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const seen = new Set();
  for (let i = 0; i < pixels.length; i += 4) {
    const [r, g, b, a] = pixels.slice(i, i + 4);
    if (a === 255 && Math.max(r, g, b) - Math.min(r, g, b) > 40) seen.add(`${r},${g},${b}`);
  }
  return [...seen];
})"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PROGRAM is not None
    with browser(PROGRAM, tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real model in several stages, some of them replicated."""
    graph = go_opt.load("zoo:squeezenet")
    result = go_opt.optimize(graph, "mcm-6x6", max_evaluations=10, policy=None)
    path = tmp_path_factory.mktemp("page") / "plan ü.html"
    path.write_text(go_opt.plan_page(graph, "mcm-6x6", result.plan), "utf-8")
    return path


def check_quiet(tab: Browser, page: Path) -> None:
    """No error reached the console, and nothing but the file was asked for."""
    assert tab.errors == []
    assert tab.requests == [page.as_uri()]


def stage_colours(tab: Browser) -> set[str]:
    script = "JSON.parse(document.getElementById('data').textContent).stages.map(stage => stage.colour)"
    return {",".join(str(int(hexed[i : i + 2], 16)) for i in (1, 3, 5)) for hexed in tab.run(script)}


@pytest.mark.parametrize("is_dark", [False, True])
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_shows_the_plan(tab: Browser, page: Path, width: int, is_dark: bool) -> None:
    tab.open(page, width=width, is_dark=is_dark)
    colours = stage_colours(tab)
    for canvas in ("graph", "timeline"):
        assert colours <= set(tab.run(f"{COLOURS}('{canvas}')")), f"a stage is missing in the {canvas}"
    assert tab.run("document.documentElement.scrollWidth") <= width, "the page is wider than the screen"
    assert tab.run("document.querySelectorAll('#pipeline > li').length") == len(colours) + 2
    assert tab.run("document.querySelectorAll('#memory path').length") == len(colours)
    assert tab.run("document.querySelectorAll('#limits .row').length") > 3
    assert tab.run("document.querySelector('#facts dt').textContent") == "interval"
    assert tab.run("document.title").startswith("squeezenet on mcm-6x6")
    paper = tab.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 3 * 64) == is_dark
    check_quiet(tab, page)


def test_the_search_is_reached_and_used_by_keys(tab: Browser, page: Path) -> None:
    tab.open(page)
    data = json.loads(tab.run("document.getElementById('data').textContent"))
    name = data["ops"]["name"][37]
    before = tab.picture()
    tab.press("Tab")
    assert tab.run("document.activeElement.id") == "search"
    tab.call("Input.insertText", text=name.upper())
    assert tab.run("document.querySelector('#found li .name').textContent") == name
    tab.press("Enter")
    tab.wait()
    assert tab.run("document.getElementById('selected').textContent") == name
    details = tab.run("document.getElementById('details').innerText")
    kernel = data["ops"]["kernel"][37]
    stage = data["stages"][data["kernels"]["stage"][kernel]]["name"]
    for words in (stage, data["ops"]["types"][data["ops"]["type"][37]], f"Why on {stage}", "Placed by"):
        assert words in details
    assert tab.picture() != before
    check_quiet(tab, page)


def test_the_graph_is_moved_zoomed_and_clicked(tab: Browser, page: Path) -> None:
    tab.open(page)
    tab.run("document.getElementById('graph').focus()")
    whole = tab.run("document.getElementById('graph').toDataURL()")
    for key in ("+", "ArrowRight", "ArrowDown"):
        tab.press(key, key if len(key) == 1 else "")
    tab.wait()
    assert tab.run("document.getElementById('graph').toDataURL()") != whole
    tab.press("0", "0")
    tab.wait()
    assert tab.run("document.getElementById('graph').toDataURL()") == whole
    # The middle of the first box of the drawing, which begins below the name of its stage.
    x, y = tab.run("""(() => {
      const canvas = document.getElementById('graph');
      const { width, height } = canvas;
      const pixels = canvas.getContext('2d').getImageData(0, 0, width, height).data;
      for (let i = 0; i < pixels.length; i += 4) {
        const [r, g, b, a] = pixels.slice(i, i + 4);
        if (a === 255 && Math.max(r, g, b) - Math.min(r, g, b) > 40) {
          const place = canvas.getBoundingClientRect();
          return [place.left + (i / 4) % width + 6, place.top + Math.floor(i / 4 / width) + 4];
        }
      }
    })()""")
    for kind in ("mousePressed", "mouseReleased"):
        tab.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    tab.wait()
    first = tab.run("JSON.parse(document.getElementById('data').textContent).ops.box.indexOf(0)")
    name = tab.run(f"JSON.parse(document.getElementById('data').textContent).ops.name[{first}]")
    assert tab.run("document.getElementById('selected').textContent") == name
    check_quiet(tab, page)


def test_no_name_runs(tab: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(nasty_page(), "utf-8")
    tab.open(page, width=400)
    assert tab.run("document.querySelectorAll('script').length") == 2
    assert tab.run("document.querySelectorAll('img').length") == 0
    assert tab.run("document.getElementById('title').textContent") == f"{NASTY[0]} on small-mcm"
    for name in NASTY:
        tab.run("document.getElementById('search').value = ''")
        tab.run("document.getElementById('search').focus()")
        tab.call("Input.insertText", text=name.strip("\u2028"))
        tab.press("Enter")
        # A field of one line takes no line separator; the name is found by what is around it.
        assert tab.run("document.getElementById('selected').textContent") == name
        assert tab.run("document.documentElement.scrollWidth") <= 400
    check_quiet(tab, page)


def test_fifty_thousand_ops(tab: Browser, tmp_path: Path) -> None:
    graph, target = chain(50_000), go_opt.target("mcm-2x2")
    kernel = np.arange(50_000) // 25
    plan = make_plan(graph, target, (kernel // 500).tolist(), fusion_group=kernel.tolist())
    page = tmp_path / "page.html"
    page.write_text(go_opt.plan_page(graph, target, plan, objective="latency"), "utf-8")
    assert page.stat().st_size < 8e6
    tab.open(page)
    assert "50,000 ops" in tab.run("document.getElementById('graph-notes').textContent")
    assert stage_colours(tab) <= set(tab.run(f"{COLOURS}('graph')"))
    tab.run("document.getElementById('search').focus()")
    tab.call("Input.insertText", text="op49999")
    tab.press("Enter")
    assert tab.run("document.getElementById('selected').textContent") == "op49999"
    check_quiet(tab, page)
