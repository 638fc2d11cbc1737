"""The Python of docs/service.md runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from go_opt.service.server import serve_in_thread

DOCUMENT = Path(__file__).parents[2] / "docs" / "service.md"


def test_the_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    with serve_in_thread() as address:
        exec(compile(code.replace("127.0.0.1:50051", address), str(DOCUMENT), "exec"), {})
    assert "gap" in capsys.readouterr().out
