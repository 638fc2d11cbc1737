"""What the verifier of splits must refuse although no search makes it."""

from __future__ import annotations

import pytest

from go_opt import from_onnx
from go_opt.env.copies import columns
from go_opt.env.copies.splits import split_graph
from go_opt.model.axes import kept_heads
from go_opt.search.splits.inner_ways import blocks_of, splits_of_blocks
from go_opt.solver.verify.splits import broken_splits
from tests.transformers import encoder


def test_parts_of_one_head_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No search makes them: a Transpose of one head may be a view, which is no op."""
    graph = from_onnx(encoder(1, 8, 16, 4))
    blocks = [block for block in blocks_of(graph) if any(op in kept_heads(graph) for op in block)]
    assert blocks
    of_two = columns.heads_of
    monkeypatch.setattr(columns, "heads_of", lambda graph, op, parts: of_two(graph, op, 2))
    for parts, is_right in ((2, True), (4, False)):
        splits = tuple(splits_of_blocks(graph, blocks, parts))
        found = list(broken_splits(graph, split_graph(graph, splits), splits))
        assert (found == []) is is_right
        assert is_right or any("do not write its heads" in problem for problem in found)
