"""README.md and docs/: links, files and commands are real, and the glossary is short."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from go_opt.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
MOST_TERMS = 40
SOURCES = [
    path.as_posix()
    for folder in ("go_opt", "env", "solver", "agents", "proto", "tests", "docs")
    for path in (ROOT / folder).rglob("*.*")
]


def anchors(page: Path) -> set[str]:
    """The headings of ``page`` as GitHub links to them."""
    prose = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(text: str) -> list[str]:
    """The lines of code blocks that call go-opt."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    parts = [part for line in lines for part in re.split(r"  #| && | > ", line)]
    return [part for part in parts if part.startswith("go-opt ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for name, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text("utf-8")):
        if not name.startswith("http"):
            target = page.parent / name if name else page
            assert target.exists(), name
            assert not anchor or anchor in anchors(target), f"{name}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_of_the_code_exist(page: Path) -> None:
    for path in re.findall(r"`((?:\w+/)+\w+\.(?:toml|proto)|(?:\w+/)*\w+\.py)\b", page.read_text("utf-8")):
        assert any(source.endswith(f"/{path}") for source in SOURCES), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_understood(page: Path) -> None:
    for line in commands(page.read_text("utf-8")):
        name, *arguments = shlex.split(line)[1:]
        command: Any = typer.main.get_command(app).commands[name].loaded  # type: ignore[attr-defined]
        if hasattr(command, "commands"):
            command, arguments = command.commands[arguments[0]], arguments[1:]
        command.make_context(name, arguments)


def test_the_glossary_is_short() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    _, *terms = re.findall(r"^\| ([\w -]+) \|", text, re.MULTILINE)
    assert 0 < len(terms) <= MOST_TERMS
    assert terms == sorted(terms, key=str.lower)
