"""Importers find the states of a model, and name the inputs that look like one."""

from __future__ import annotations

import pytest

from go_opt import Graph, from_onnx
from go_opt.errors import ModelError
from go_opt.frontends.onnx_frontend import import_onnx, states_of
from go_opt.model.bindings import Bindings
from tests.frontends.state_models import FOUND, GIVEN, NOT_STATE, StateModel


def _imported(case: StateModel, given: dict[str, str]) -> tuple[Graph, dict[str, str]]:
    """The graph of a model, and its pairs in the model's own names."""
    bindings = Bindings.of(case.dims, states=given)
    graph, lowered = import_onnx(case.proto, bindings, "native")
    found = states_of(lowered, bindings).states
    assert {graph.tensor_names[state.read] for state in graph.states} == {state.read for state in found}
    return graph, {state.read: state.next for state in found}


def _given(case: StateModel) -> dict[str, str]:
    return dict(pattern.split("=") for pattern in case.patterns)


@pytest.mark.parametrize("case", [*FOUND, *NOT_STATE], ids=str)
def test_names_say_which_tensors_are_states(case: StateModel) -> None:
    graph, pairs = _imported(case, {})
    assert pairs == case.pairs
    assert set(graph.unpaired_states) == case.unpaired
    assert {state.scope for state in graph.states} <= {"sequence"}


@pytest.mark.parametrize("case", GIVEN, ids=str)
def test_pairs_may_be_given(case: StateModel) -> None:
    before = from_onnx(case.proto)
    assert set(before.unpaired_states) == case.unpaired
    graph, pairs = _imported(case, _given(case))
    assert pairs == case.pairs
    assert {state.scope for state in graph.states} == {case.scope}
    assert dict(graph.bindings.states) == _given(case)


def test_states_may_be_left_out() -> None:
    case = FOUND[0]
    graph = from_onnx(case.proto, states={"*": ""})
    assert graph.states == ()
    assert set(graph.unpaired_states) == set(case.pairs)
    assert graph.tensor_is_output.sum() == 1 + len(case.pairs)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"past_0": "present.0.key"}, "has no input 'past_0'"),
        ({"past_key_values.0.key": "presents"}, "has no output 'presents'"),
    ],
)
def test_a_wrong_pair_is_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        from_onnx(FOUND[0].proto, states=given)
