"""Suggests known names for a misspelt one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_LONGEST: Final = 200  # characters of a name that are compared
_ALIKE: Final = 0.5  # least similarity, from 0 to 1


def suggestion(name: str, known: Iterable[str], *, otherwise: str = ".") -> str:
    """The end of an error: ``; did you mean 'pin'?``, or ``otherwise`` if no known name is close."""
    near = get_close_matches(name[:_LONGEST], list(known), n=3, cutoff=_ALIKE)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else otherwise
