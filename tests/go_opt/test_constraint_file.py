"""Constraints as TOML: read, written, and refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

import go_opt
from go_opt.errors import InvalidInputError
from go_opt.given_request import as_constraints, load_constraints, parse_constraints

TEXT = """
[[limit]]
chip = 0
at_most_bytes = 8e6
at_least_s = 0
at_most_ops = 12
at_most_kernels = 9

[[pin]]
ops = "encoder/.*"
chip = 3

[[pin]]
ops = ["a", "b"]
chip = 0

[[forbid]]
ops = "head"
chips = [0, 1]

[[colocate]]
ops = ["c", "d.*"]

[[colocate]]
op_types = ["LSTM", ".*Conv"]
ops = "c"

[[cut_after]]
ops = "block3/.*"

[[cut_after]]
op_types = "Softmax"

[[stages]]
count = 3
"""
CONSTRAINTS = (
    go_opt.Pin("encoder/.*", 3),
    go_opt.Pin(["a", "b"], 0),
    go_opt.Forbid("head", [0, 1]),
    go_opt.Colocate(["c", "d.*"]),
    go_opt.Colocate("c", op_types=["LSTM", ".*Conv"]),
    go_opt.CutAfter("block3/.*"),
    go_opt.CutAfter(op_types="Softmax"),
    go_opt.ChipLimit(0, at_most_bytes=8e6, at_least_s=0, at_most_ops=12, at_most_kernels=9),
    go_opt.Stages(3),
)


def test_a_file_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "constraints.toml"
    path.write_text(TEXT, "utf-8")
    assert load_constraints(path) == CONSTRAINTS
    assert as_constraints(str(path)) == as_constraints(list(CONSTRAINTS)) == CONSTRAINTS


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[[pin]]\nops = 3\nchip = 1", "pin[0].ops must be a non-empty text, or a list of such, not 3."),
        ("[[pin]]\nops = []\nchip = 1", "pin[0].ops must be a non-empty text, or a list of such, not []."),
        ("[[pin]]\nchip = 1", "pin[0].ops is missing."),
        ("[[pin]]\nchip = 1\nop_types = []", "pin[0].op_types must be a non-empty text, or a list of such"),
        ("[[limit]]\nchip = 1\nop_types = 'a'", "unknown field limit[0].op_types"),
        ("[[pin]]\nops = 'a'", "pin[0].chip is missing."),
        ("[[pin]]\nops = 'a'\nchip = -1", "pin[0].chip must be a whole number of 0 or more, not -1."),
        ("[[pin]]\nops = 'a'\nchip = 9999999999", "Pin: a chip must be a whole number"),
        ("[[pin]]\nops = 'a'\nchip = 1\nchp = 2", "unknown field pin[0].chp; did you mean 'chip'?"),
        ("[[pins]]\nops = 'a'\nchip = 1", "unknown field pins; did you mean 'pin'?"),
        ("[pin]\nops = 'a'\nchip = 1", "pin must be a list of one or more tables"),
        ("[[forbid]]\nops = 'a'\nchips = 1", "forbid[0].chips must be a list of whole numbers"),
        ("[[forbid]]\nops = 'a'\nchips = []", "forbid[0].chips must be a list of whole numbers"),
        ("[[limit]]\nchip = 0", "limit of chip 0: give one of at_most_bytes, at_least_bytes"),
        ("[[limit]]\nchip = 0\nat_most_s = nan", "limit[0].at_most_s must be a finite number, not nan."),
        ("[[limit]]\nchip = 0\nat_most = 1", "unknown field limit[0].at_most; did you mean 'at_most_s'"),
        ("[[stages]]", "stages[0].count is missing."),
        ("[[stages]]\ncount = 0", "Stages: count must be a whole number of 1 or more, not 0."),
        ("[[pin", "not valid TOML"),
    ],
)
def test_a_mistake_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_constraints(text, "mine.toml")
    assert str(caught.value).startswith("constraints 'mine.toml': ")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.field == "constraints"


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot be read: No such file"):
        load_constraints(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInputError, match="is not UTF-8 text"):
        load_constraints(tmp_path / "binary.toml")
