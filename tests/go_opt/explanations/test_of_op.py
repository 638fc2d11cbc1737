"""One op explained: by hand on the toy graph, and the text of it."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import jax
import numpy as np
import pytest
from rich.console import Console

from go_opt import from_jax
from go_opt.common.units import format_bytes
from go_opt.env import greedy_fusion, loop_roles
from go_opt.errors import InvalidInputError
from go_opt.explanations import OpExplanation, explain_op
from go_opt.explanations.explaining import Read, Written
from go_opt.explanations.terms import Place
from go_opt.model.plan import Relay
from go_opt.report.explanation import print_op_explanation
from tests.strategies import make_plan, small_mcm, toy_graph


def text_of(told: OpExplanation) -> str:
    out = io.StringIO()
    print_op_explanation(Console(file=out, width=240), told)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def test_an_op_its_kernel_and_its_ties() -> None:
    graph, target = toy_graph(), small_mcm(2)
    told = explain_op(graph, target, make_plan(graph, target, [0, 0, 0, 0, 1, 1]), "add")
    assert (told.op_type, told.op_class, told.chip, told.provenance) == ("Add", "vector", 1, "by hand")
    assert (told.place_on_chip, told.kernels_on_chip) == (1, 2)
    assert told.kernel.seconds == pytest.approx(6e-6)
    assert told.chip_busy_s == pytest.approx(20e-6)
    assert told.reads == (
        Read("s", "activation", 1000, Place("mix", 0), (), is_in_kernel=False),
        Read("x", "activation", 1000, Place("embed", 0), (), is_in_kernel=False),
    )
    assert told.writes == (Written("y", 1000, (Place("logits", 1),), is_output=False),)
    assert told.free_chips == (0, 1)
    (move,) = told.moves
    assert (move.chip, move.forbidden) == (0, "")


def test_weights_say_whether_they_stream() -> None:
    graph, target = toy_graph(), small_mcm(1, sram_bytes=10_000)
    plan = make_plan(graph, target, [0] * 6)
    kinds = {read.tensor: read.kind for read in explain_op(graph, target, plan, "logits").reads}
    assert kinds == {"y": "activation", "table": "streamed weight"}
    kinds = {read.tensor: read.kind for read in explain_op(graph, target, plan, "mix").reads}
    assert kinds == {"a": "activation", "w2": "weight"}


def test_kernel_mates_and_what_stays_in_the_kernel() -> None:
    graph, target = toy_graph(), small_mcm(2)
    group = greedy_fusion(loop_roles(graph), np.arange(6, dtype=np.int32))
    plan = make_plan(graph, target, [0] * 5 + [1], fusion_group=group.tolist())
    told = explain_op(graph, target, plan, "relu")
    assert told.kernel.ops == ("dense", "relu")
    assert told.reads == (Read("h", "activation", 1000, Place("dense", 0), (), is_in_kernel=True),)
    assert "one kernel with `dense`" in text_of(told)
    assert "in the same kernel: no traffic" in text_of(told)


def test_relays_on_the_way() -> None:
    graph, target = toy_graph(), small_mcm(3, triangle="adjacent")
    plan = make_plan(graph, target, [0, 1, 1, 1, 2, 2])
    relayed = explain_op(graph, target, replace(plan, relays=(Relay("x", (1,)),)), "add")
    assert relayed.reads[-1] == Read("x", "activation", 1000, Place("embed", 0), (1,), is_in_kernel=False)
    assert "relayed on chip 1" in text_of(relayed)


@pytest.mark.parametrize(
    ("name", "hint"), [("ad", "did you mean 'add'"), ("zzz", "no op 'zzz'."), ("logit", "'logits'")]
)
def test_an_unknown_op_is_refused_with_those_near(name: str, hint: str) -> None:
    graph, target = toy_graph(), small_mcm(2)
    with pytest.raises(InvalidInputError, match="the graph has no op") as error:
        explain_op(graph, target, make_plan(graph, target, [0] * 6), name)
    assert hint in str(error.value)


TEXT = """\
`mix` (MatMul, matrix, float32, 0.002 MFLOP)
runs on chip 1; placed by 'by hand'
kernel 1 of 1 on the chip: 5 us of its 5 us, SRAM binds: 2 us compute, 4 us SRAM traffic of 4 kB, \
1 us overhead
reads
  2 kB of weight `w2`
  1 kB of `a` from `relu` (chip 0)
writes
  1 kB of `s` to `add` (chip 2)
With all other kernels where they are, only chip 1 can run it. The interval is 20 us, \
and chip 2 compute binds. Elsewhere:
 chip  ops along  interval     change  then binds      because
 0             -   23.4 us  forbidden  chip 0 compute  chip 1 would run no op
 2             -     25 us  forbidden  chip 2 compute  chip 1 would run no op"""


def test_the_text_word_for_word() -> None:
    graph, target = toy_graph(), small_mcm(3, triangle="off")
    told = explain_op(graph, target, make_plan(graph, target, [0, 0, 0, 1, 2, 2]), "mix")
    assert text_of(told) == TEXT


def test_chips_that_are_forbidden_for_one_reason_share_a_row() -> None:
    graph, target = toy_graph(), small_mcm(6)
    told = explain_op(graph, target, make_plan(graph, target, [0, 0, 0, 1, 1, 1]), "mix")
    (row,) = [line for line in text_of(told).splitlines() if line.startswith(" 2 to 5")]
    assert "chip 1 would run no op; its kernel is read by `add` (chip 1)" in row


def test_of_a_plan_that_breaks_a_rule_no_move_is_told() -> None:
    graph, target = toy_graph(), small_mcm(3)
    told = explain_op(graph, target, make_plan(graph, target, [0, 0, 0, 2, 2, 2]), "mix")
    assert told.moves == ()
    text = text_of(told)
    assert text.startswith("INVALID, no_skip: chip 1 runs no op, but chip 2 does.")
    assert "Elsewhere" not in text


@pytest.mark.parametrize("rows", [1, 8])
def test_an_update_of_one_row_says_that_it_copies_the_cache(rows: int) -> None:
    def update(cache: jax.Array, row: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice(cache, row, (3, 0))

    shapes = [jax.ShapeDtypeStruct((count, 64), np.float32) for count in (64, rows)]
    graph, target = from_jax(update, *shapes), small_mcm(2)
    told = explain_op(graph, target, make_plan(graph, target, [0]), "dynamic_update_slice")
    words = re.search(r"It copies (.*) of `cache`, of which at most (.*) change: no tensor", text_of(told))
    assert words is not None
    size = told.writes[0].size_bytes
    assert words.groups() == (format_bytes(size), format_bytes(size * rows // 64))
