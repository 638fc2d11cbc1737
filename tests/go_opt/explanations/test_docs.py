"""The Python of docs/explain.md runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[3] / "docs" / "explain.md"


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    exec(compile(code, str(DOCUMENT), "exec"), {})
    assert capsys.readouterr().out.startswith("link 0->1 (")
