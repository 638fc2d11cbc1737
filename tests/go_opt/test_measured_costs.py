"""Measured costs: what a table says is what ops cost, and mistakes name their line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import go_opt
from go_opt.costs.measured_costs import with_measured_costs
from go_opt.env import cost_tables
from go_opt.env.kernels.numbering import kernel_seconds
from go_opt.errors import InvalidInputError, PlanError
from tests.strategies import chip_kind, make_plan, small_mcm, toy_graph

TARGET = small_mcm(kinds=[chip_kind("big"), chip_kind("small")])


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "costs.csv"
    path.write_text(text, "utf-8")
    return path


def test_measured_ops_cost_what_was_measured(tmp_path: Path) -> None:
    # One of its own kind beats *, wherever it stands.
    table = "op,kind,seconds\r\nmix,small,5e-6\r\nmix,*,2e-6\r\nrelu,small,\r\n\r\nadd,big,excluded\r\n"
    graph = with_measured_costs(toy_graph(), written(tmp_path, table), TARGET)
    tables = cost_tables(graph, TARGET)
    assert tables.measured_s[:, 3].tolist() == [2e-6, 5e-6]
    assert tables.can_run[:, 2].tolist() == [True, False]
    assert tables.can_run[:, 4].tolist() == [False, True]
    kernels = kernel_seconds(tables, np.arange(6, dtype=np.int32))
    assert kernels[:, 3].tolist() == [2e-6, 5e-6]
    np.testing.assert_allclose(kernels[0, 1], 9e-6)  # as before


def test_a_mapping_says_the_same_as_a_table(tmp_path: Path) -> None:
    table = written(tmp_path, "op,kind,seconds\nmix,big,2e-6\nrelu,small,excluded\n")
    costs = {"mix": {"big": 2e-6}, "relu": {"small": None}}
    from_table = with_measured_costs(toy_graph(), table, TARGET)
    from_mapping = with_measured_costs(toy_graph(), costs, TARGET)
    assert from_table.fingerprint == from_mapping.fingerprint != toy_graph().fingerprint


def test_later_costs_take_the_place_of_earlier_ones() -> None:
    first = with_measured_costs(toy_graph(), {"mix": {"big": 1e-6, "small": None}}, TARGET)
    second = with_measured_costs(first, {"mix": {"big": None, "small": 3e-6}}, TARGET)
    tables = cost_tables(second, TARGET)
    assert tables.can_run[:, 3].tolist() == [False, True]
    assert np.isnan(tables.measured_s[0, 3])
    assert tables.measured_s[1, 3] == 3e-6
    assert (
        second.fingerprint
        == with_measured_costs(toy_graph(), {"mix": {"big": None, "small": 3e-6}}, TARGET).fingerprint
    )


def test_no_rows_change_nothing(tmp_path: Path) -> None:
    table = written(tmp_path, "op,kind,seconds\n")
    assert with_measured_costs(toy_graph(), table, TARGET).fingerprint == toy_graph().fingerprint


def test_a_plan_is_of_the_costs_it_was_made_with() -> None:
    graph = with_measured_costs(toy_graph(), {"mix": {"big": 2e-6}}, TARGET)
    plan = make_plan(graph, TARGET, [0] * 6)
    assert go_opt.evaluate(graph, TARGET, plan).valid
    with pytest.raises(PlanError, match="a plan made with measured costs is judged with the same costs"):
        go_opt.evaluate(toy_graph(), TARGET, plan)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ("mx,big,1", "line 2: graph 'toy' has no op 'mx'; did you mean 'mix'?"),
        ("mix,bg,1", "line 2: target 'small-mcm' has no chip kind 'bg'; did you mean 'big'?"),
        ("mix,big,-1", "line 2: seconds must be between 0 and 1e+30, or excluded, not '-1'."),
        ("mix,big,nan", "line 2: seconds must be between 0"),
        ("mix,big,1e400", "line 2: seconds must be between 0"),
        ("mix,big,fast", "line 2: seconds must be between 0"),
        ("mix,big", "line 2: 2 fields, must be 3."),
        ("mix,big,1\n\nmix,big,2", "line 4: op 'mix' on 'big' has a row already, costs"),
        ('mix,"big,1', "is not valid CSV"),
    ],
)
def test_a_mistake_names_its_line(tmp_path: Path, rows: str, sentence: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        with_measured_costs(toy_graph(), written(tmp_path, "op,kind,seconds\n" + rows), TARGET)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.field == "costs"


@pytest.mark.parametrize(
    ("costs", "sentence"),
    [
        ({"mix": 3.0}, "costs of op 'mix' must be a mapping of kinds to seconds, not 3.0."),
        ({"mix": {"big": "1"}}, "costs of op 'mix' on 'big': seconds must be a number or None, not '1'."),
        ({"mix": {"big": -1.0}}, "costs of op 'mix' on 'big': seconds must be between 0"),
        ({"nix": {"big": 1.0}}, "graph 'toy' has no op 'nix'; did you mean 'mix'?"),
    ],
)
def test_a_mistake_of_a_mapping_names_the_op(costs, sentence: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        with_measured_costs(toy_graph(), costs, TARGET)
    assert sentence in str(caught.value)


def test_a_file_that_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="the first line must be op,kind,seconds, not "):
        with_measured_costs(toy_graph(), written(tmp_path, "name;seconds\n"), TARGET)
    with pytest.raises(InvalidInputError, match="cannot be read: No such file"):
        with_measured_costs(toy_graph(), tmp_path / "none.csv", TARGET)
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInputError, match="is not UTF-8 text"):
        with_measured_costs(toy_graph(), tmp_path / "binary.csv", TARGET)
