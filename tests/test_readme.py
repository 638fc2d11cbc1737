"""The README's code runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
PYTHON_BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)


def run(code: str) -> None:
    exec(compile(code, str(README), "exec"), {})


def test_the_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    run(PYTHON_BLOCKS[0])
    assert "runs on chip" in capsys.readouterr().out


def test_there_are_no_other_examples() -> None:
    assert len(PYTHON_BLOCKS) == 1
