"""The simulator's tables of a target file: what a mistake is called, what missing tables mean."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from go_opt.env import load_target, parse_target
from go_opt.env.simulator.simulate import setting_of
from go_opt.env.target.kinds import (
    EFFECTS,
    KindParameters,
    OpFactor,
    SimulatorParameters,
    ideal_parameters,
)
from go_opt.errors import TargetError
from tests.strategies import chip_kind, simulated_kind, simulated_package, small_mcm, target_toml, toy_graph

PACKAGE_MISTAKES = [
    ("buffers", -1), ("buffers", 1.5), ("buffers", "two"), ("buffers", True),
    ("packet_bytes", -1), ("packet_header_bytes", -1), ("packet_header_bytes", 0.5),
    ("host_multicast", 1), ("weight_prefetch", "yes"), ("noise", -0.1), ("noise", "none"),
]  # fmt: skip
KIND_MISTAKES = [
    ("tile", [16, 64]), ("tile", [16, 0, 64]), ("tile", [16, 64, 0.5]), ("tile", 16), ("tile", [True, 1, 1]),
    ("tiles_at_once", 0), ("fill_s", -1.0), ("vector_lanes", 0), ("vector_lanes", 2.0),
    ("dma_engines", -1), ("dma_setup_s", -1e-6), ("alignment_bytes", 0), ("stream_buffer_bytes", -1),
]  # fmt: skip


def refused(**tables: Any) -> str:
    """The message about a target with these tables, which is one sentence."""
    with pytest.raises(TargetError) as caught:
        parse_target(target_toml(**tables), "mine")
    message = str(caught.value)
    assert message.startswith("target 'mine': ")
    assert message.endswith((".", "?"))
    assert "\n" not in message
    return message


@pytest.mark.parametrize(("field", "value"), PACKAGE_MISTAKES)
def test_bad_field_of_the_package(field: str, value: Any) -> None:
    message = refused(simulator=simulated_package(**{field: value}))
    assert f"simulator.{field} must be" in message


@pytest.mark.parametrize(("field", "value"), KIND_MISTAKES)
def test_bad_field_of_a_kind(field: str, value: Any) -> None:
    message = refused(kinds=[chip_kind(simulator=simulated_kind(**{field: value}))])
    assert f"kinds[0].simulator.{field} must be" in message


@pytest.mark.parametrize("field", simulated_package())
def test_missing_field_of_the_package(field: str) -> None:
    table = simulated_package()
    del table[field]
    assert f"simulator.{field} is missing" in refused(simulator=table)


OPTIONAL = ("tile", "tiles_at_once", "fill_s")  # a kind with figures of GPU kernels has none


@pytest.mark.parametrize("field", [one for one in simulated_kind() if one not in OPTIONAL])
def test_missing_field_of_a_kind(field: str) -> None:
    table = simulated_kind()
    del table[field]
    assert f"kinds[0].simulator.{field} is missing" in refused(kinds=[chip_kind(simulator=table)])


def test_unknown_fields() -> None:
    message = refused(simulator=simulated_package(buffer=2))
    assert "unknown field simulator.buffer; did you mean 'buffers'?" in message
    message = refused(kinds=[chip_kind(simulator=simulated_kind(tiles=2))])
    assert "unknown field kinds[0].simulator.tiles" in message


def test_missing_tables_are_ideal() -> None:
    assert small_mcm(2).simulator == ideal_parameters(1)


def test_one_table_alone() -> None:
    of_kind = small_mcm(kinds=[chip_kind(simulator=simulated_kind(dma_engines=3))]).simulator
    assert of_kind == replace(ideal_parameters(1), kinds=of_kind.kinds)
    assert of_kind.kinds[0].dma_engines == 3
    of_package = small_mcm(2, simulator=simulated_package(buffers=3)).simulator
    assert of_package.kinds == (KindParameters(),)
    assert of_package.buffers == 3
    assert not of_package.fit_by_size


def test_kinds_keep_their_own() -> None:
    kinds = [chip_kind("a", simulator=simulated_kind(dma_engines=3)), chip_kind("b")]
    assert [kind.dma_engines for kind in small_mcm(kinds=kinds).simulator.kinds] == [3, 0]


# What each effect is about: fields of the package, fields of a kind.
SHAPES = ("tile_rows", "tile_inner", "tile_columns", "tiles_at_once", "fill_s", "vector_lanes", "op_factors")
FIELDS = {
    "shapes": ((), SHAPES),
    "dma": ((), ("dma_engines", "dma_setup_s")),
    "latency": ((), ()),
    "packets": (("packet_bytes", "packet_header_bytes"), ()),
    "buffers": (("buffers",), ()),
    "host": (("host_multicast", "weight_prefetch"), ()),
    "memory": (("fit_by_size",), ("alignment_bytes", "stream_buffer_bytes")),
    "noise": (("noise",), ()),
}


def changed(before: object, after: object) -> set[str]:
    return {f.name for f in fields(before) if getattr(before, f.name) != getattr(after, f.name)}


@pytest.mark.parametrize("effect", EFFECTS)
def test_without(effect: str) -> None:
    stated = load_target("mcm-6x6").simulator
    # Every field of it differs from the ideal, so that what is switched off shows.
    kind = replace(stated.kinds[0], tiles_at_once=2, op_factors=(OpFactor("Conv", 2.0),))
    stated = replace(stated, kinds=(kind,))
    left = stated.without([effect])
    of_package, of_kind = FIELDS[effect]
    assert changed(stated, left) - {"kinds"} == set(of_package)
    assert changed(kind, left.kinds[0]) == set(of_kind)
    for name in of_package:
        assert getattr(left, name) == getattr(SimulatorParameters(()), name)
    for name in of_kind:
        assert getattr(left.kinds[0], name) == getattr(KindParameters(), name)


def test_without_all_is_ideal() -> None:
    stated = load_target("mcm-6x6").simulator
    assert stated.without(EFFECTS) == ideal_parameters(1)
    assert stated.without(()) == stated


def test_latency_is_the_topology_s() -> None:
    graph, target = toy_graph(), small_mcm(2)
    assert (setting_of(graph, target, ())[0].link_latency_s == 1e-6).all()
    np.testing.assert_array_equal(setting_of(graph, target, ("latency",))[0].link_latency_s, 0.0)
