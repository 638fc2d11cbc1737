"""Amounts as people write them."""

from __future__ import annotations

import pytest

from go_opt.common.units import parse_amount
from go_opt.errors import InvalidInputError


@pytest.mark.parametrize(
    ("text", "unit", "amount"),
    [
        ("24GB", "bytes", 24e9),
        (" 16 GiB ", "bytes", 17179869184.0),
        ("512", "bytes", 512.0),
        ("300 GB/s", "bytes/s", 300e9),
        ("1.5e3 kB/s", "bytes/s", 1.5e6),
        ("400 Gbit/s", "bytes/s", 50e9),
        ("400Gbps", "bytes/s", 50e9),
        ("900GBps", "bytes/s", 900e9),
        ("120 TFLOPS", "FLOP/s", 120e12),
        ("26 TOPS", "FLOP/s", 26e12),
        ("1.5 PFLOP/s", "FLOP/s", 1.5e15),
        ("5us", "s", 5e-6),
        ("5 µs", "s", 5e-6),
        ("80 ns", "s", 8e-8),
        ("1e-6", "s", 1e-6),
    ],
)
def test_amounts(text: str, unit: str, amount: float) -> None:
    assert parse_amount(text, "x", unit) == amount


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        *(("GB", "bytes"), ("24G", "bytes"), ("24 GB/s", "bytes"), ("-1 GB", "bytes")),
        *(("1.2.3 GB", "bytes"), ("1e999 GB", "bytes"), ("nan", "bytes"), ("", "bytes"), ("5m", "s")),
        *(("5 GB", "FLOP/s"), ("24 GB\n25 GB", "bytes"), ("5 xs", "s")),
    ],
)
def test_what_is_no_amount(text: str, unit: str) -> None:
    with pytest.raises(InvalidInputError, match=r"^x must be an amount such as "):
        parse_amount(text, "x", unit)
