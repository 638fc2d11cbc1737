"""Texts of target files that are wrong in every way, or strange and right."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any, Final

from hypothesis import strategies as st

_TARGET: Final = (files("go_opt.env.targets") / "gpu-2.toml").read_text("utf-8")
_VALUES: Final = (
    "0",
    "1",
    "-1",
    "3",
    "256",
    "257",
    "4096",
    "4097",
    "9223372036854775807",
    "9223372036854775808",
    "4611686018427387903",
    "1e308",
    "1e-308",
    "5e-324",
    "-0.0",
    "inf",
    "nan",
    "9" * 4000,
    "9" * 5000,
    "0x" + "f" * 6000,
    "true",
    "'ring'",
    "'chain'",
    "'host_star'",
    "'mesh2d'",
    "'listed'",
    "'float4'",
    "'/etc/passwd'",
    "'../canary.toml'",
    "[]",
    "[1, 2]",
    "[1, 1, 9223372036854775808]",
    "{}",
    "{ a = 1 }",
    "1979-05-27T07:32:00Z",
    "1979-99-99",
    "07:32:00",
    "[" * 20_000,
    "{a=" * 20_000,
    "'" + "x" * 50_000 + "'",
)
_WHOLE: Final = (
    "",
    "\0",
    "a",
    "name = 'x'",
    "a." * 20_000 + "a = 1",
    "[" + "a." * 20_000 + "a]",
    "a = " + "[" * 100_000,
    "kinds = [" + "{}," * 20_000 + "]",
    "#" * 100_000,
    "include = 'canary.toml'",
    "\r" * 1000,
    "[[kinds]]\n" * 20_000,
)
_ASSIGNED: Final = re.compile(r"(?m)^(\s*[\w.]+\s*=\s*)([^#\n]*)")


def toml_texts() -> st.SearchStrategy[str]:
    """A shipped target with a few values changed, or text that is no target."""
    return st.one_of(_changed(), _changed(), st.sampled_from(_WHOLE), st.text(max_size=30))


@st.composite
def _changed(draw: Any) -> str:
    text = _TARGET
    for _ in range(draw(st.integers(0, 2))):
        places = list(_ASSIGNED.finditer(text))
        if not places:
            break
        place = draw(st.sampled_from(places))
        text = text[: place.start(2)] + draw(st.sampled_from(_VALUES)) + text[place.end(2) :]
    if draw(st.integers(0, 5)) == 0:
        lines = text.splitlines()
        at = draw(st.integers(0, len(lines) - 1))
        text = "\n".join(lines[:at] + lines[at + 1 :] + draw(st.sampled_from(([], [lines[at]] * 2))))
    return text
