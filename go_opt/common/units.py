"""Durations, sizes, ratios and names as people read them: ``500ms``, ``3.2 MB``, ``12 %``; safe output."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any, Final, TextIO

from go_opt.errors import InvalidInputError

_SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}
_DURATION: Final = re.compile(r"\s*([0-9.eE+-]+?)\s*(us|ms|s|m|h|)\s*")


def parse_duration_s(text: str, field: str) -> float:
    """Seconds of ``text``; a bare number is seconds.

    Raises:
      InvalidInputError: the text is not a duration, or not above zero.
    """
    match = _DURATION.fullmatch(text)
    try:
        seconds = float(match[1]) * _SECONDS[match[2]] if match else math.nan
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise InvalidInputError(
            f"{field} must be a duration such as 500ms, 2s or 1m, not {text!r}.", field=field
        )
    if seconds <= 0:
        raise InvalidInputError(f"{field} must be above zero, not {text!r}.", field=field)
    return seconds


def parse_rate_per_s(text: str, field: str) -> float:
    """The rate per second of ``40000/s``, ``2.5e4`` or ``90/m``; a bare number is per second.

    Raises:
      InvalidInputError: the text is not a rate, or not above zero.
    """
    number, _, unit = text.partition("/")
    try:
        rate = float(number) / _SECONDS[unit.strip()]
    except (ValueError, KeyError):
        rate = math.nan
    if not (math.isfinite(rate) and rate > 0):
        raise InvalidInputError(
            f"{field} must be a rate above zero such as 40000/s, not {text[:100]!r}.", field=field
        )
    return rate


def format_duration(seconds: float) -> str:
    """``100.4 us``, ``1.206 ms`` …: four digits in a suitable unit."""
    if not math.isfinite(seconds):
        return "none"
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1.0:
            return f"{seconds * scale:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns"


def format_bytes(size: int) -> str:
    """``3.21 MB``, ``812 B`` …: decimal units, as vendors of memories and links use them."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.4g} {unit}"
    return f"{size} B"


def format_ratio(ratio: float) -> str:
    """A gap as a percentage, or ``unknown`` if there is no bound."""
    return f"{max(ratio, 0.0):.2%}" if math.isfinite(ratio) else "unknown"


_PREFIXES: Final = {
    "n": 1e-9,
    "u": 1e-6,
    "µ": 1e-6,
    "m": 1e-3,
    "": 1.0,
    "k": 1e3,
    "K": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "Ki": 2.0**10,
    "Mi": 2.0**20,
    "Gi": 2.0**30,
    "Ti": 2.0**40,
}
_LARGE: Final = ("", "k", "K", "M", "G", "T", "P", "Ki", "Mi", "Gi", "Ti")
# For each unit: its names with their values, the prefixes, an example.
_AMOUNTS: Final[dict[str, tuple[dict[str, float], tuple[str, ...], str]]] = {
    "bytes": ({"B": 1.0}, _LARGE, "24GB"),
    "bytes/s": ({"B/s": 1.0, "Bps": 1.0, "bit/s": 0.125, "b/s": 0.125, "bps": 0.125}, _LARGE, "300 GB/s"),
    "FLOP/s": (
        dict.fromkeys(("FLOP/s", "FLOPS", "FLOPs", "OP/s", "OPS", "OPs"), 1.0),
        ("", "M", "G", "T", "P"),
        "120 TFLOPS",
    ),
    "s": ({"s": 1.0}, ("n", "u", "µ", "m", ""), "5us"),
}
_AMOUNT: Final = re.compile(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([a-zA-Zµ/]*)\s*")


def parse_amount(text: str, field: str, unit: str) -> float:
    """The amount of ``text`` in ``unit``: ``bytes``, ``bytes/s``, ``FLOP/s`` or ``s``.

    A bare number is in that unit; ``24GB``, ``16 GiB``, ``400 Gbit/s``, ``12 TFLOPS`` and ``5us`` are scaled.

    Raises:
      InvalidInputError: the text is not such an amount.
    """
    names, prefixes, example = _AMOUNTS[unit]
    worth = {"": 1.0} | {p + name: _PREFIXES[p] * w for name, w in names.items() for p in prefixes}
    match = _AMOUNT.fullmatch(text)
    try:
        amount = float(match[1]) * worth[match[2]] if match else math.nan
    except (ValueError, KeyError):
        amount = math.nan
    if not math.isfinite(amount):
        raise InvalidInputError(
            f"{field} must be an amount such as {example}, not {text[:100]!r}.", field=field
        )
    return float(f"{amount:.12g}")  # rounded, so that 5us is 5e-06


# Control characters but line feed and tab; C1 too, which some terminals take for escape codes.
_CONTROLS: Final = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"
}


def visible(text: str) -> str:
    """``text`` with its control characters written out, so that no name can command a terminal."""
    return text.translate(_CONTROLS)


def json_line(data: Any) -> str:
    """JSON without a single control character."""
    return json.dumps(data, allow_nan=False).replace("\x7f", "\\u007f")


class VisibleStream:
    """A text stream that passes what is written through :func:`visible`; otherwise as ``stream``."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        return self.stream.write(visible(text))

    def writelines(self, lines: Iterable[str]) -> None:
        self.stream.writelines(map(visible, lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
