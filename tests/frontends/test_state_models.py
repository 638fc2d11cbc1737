"""The models with state are what they say: valid files whose inputs and outputs the pairs name."""

from __future__ import annotations

import onnx
import pytest

from go_opt import from_onnx
from tests.frontends.state_models import FOUND, GIVEN, NOT_STATE, StateModel

ALL = (*FOUND, *GIVEN, *NOT_STATE)


def test_names_are_distinct() -> None:
    assert len({case.name for case in ALL}) == len(ALL)


@pytest.mark.parametrize("case", ALL, ids=str)
def test_model_is_valid_and_has_the_pairs(case: StateModel) -> None:
    onnx.checker.check_model(case.proto, full_check=True)
    graph = case.proto.graph
    reads = {one.name for one in (*graph.input, *graph.initializer)}
    assert case.pairs.keys() | case.unpaired <= reads
    assert set(case.pairs.values()) <= {one.name for one in graph.output} | reads
    from_onnx(case.proto, dims=dict(case.dims))
