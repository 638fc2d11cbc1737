"""A page as text: the template with styles, script and data, and no external resources."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final, NamedTuple


class Kind(NamedTuple):
    """A kind of page."""

    main: str  # what stands between head and scripts
    scripts: tuple[str, ...]  # concatenated in this order: each may use definitions of those before it


PLAN: Final = Kind(
    "plan",
    (
        "units", "dom", "head", "pipeline", "view", "graph", "details", "search", "timeline", "memory",
        "limits", "main",
    ),
)  # fmt: skip
STEP: Final = Kind(
    "step", ("units", "dom", "head", "pipeline", "view", "timeline", "memory", "limits", "step")
)
# In a script element, text ends at "</script" and "<!--" opens a comment, so data must not contain "<".
_ESCAPED: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def page_text(data: dict[str, Any], kind: Kind = PLAN) -> str:
    """The page. Its data cannot end their script element, and only the page's own script may run."""
    assets = files(f"{__package__}.assets")
    style = _text(assets / "page.css")
    script = "\n".join(_text(assets / f"{name}.js") for name in kind.scripts)
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    main = _text(assets / f"{kind.main}.html")
    parts = {"main": main, "policy": policy, "style": style, "script": script, "data": escaped_json(data)}
    page = _text(assets / "page.html")
    pieces = page.split("@@")  # text, name of a part, text, …
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def escaped_json(data: dict[str, Any]) -> str:
    """JSON in ASCII that is safe in a script element."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).translate(_ESCAPED)


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _text(asset: Traversable) -> str:
    return asset.read_text("utf-8")
