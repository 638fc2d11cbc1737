"""Names of graphs and methods, and records as JSON."""

from __future__ import annotations

import json
import math

import pytest

from go_opt.bench.matches import METHODS, Match, Record, methods_named, models_named
from go_opt.bench.rivals import Point
from go_opt.env.zoo import zoo_entries
from go_opt.errors import InvalidInputError, ModelError

MATCH = Match("zoo:resnet50", "mcm-6x6", "genetic", 2, budget_s=10.0, link_scale=8.0, relays=False)


def test_models_by_name_split_and_family() -> None:
    assert models_named(["resnet50", "zoo:squeezenet", "my/net.onnx", "resnet50"], "mcm-6x6") == [
        "zoo:resnet50",
        "zoo:squeezenet",
        "my/net.onnx",
    ]
    assert models_named(["family:squeezenet", "squeezenet"], "mcm-6x6") == ["zoo:squeezenet"]
    validation = models_named(["split:validation"], "mcm-6x6")
    ops = {f"zoo:{entry.name}": entry.ops for entry in zoo_entries()}
    assert [ops[model] for model in validation] == sorted(ops[model] for model in validation)
    # Two graphs of it are for another target.
    assert "zoo:inception_v3" in validation
    assert "zoo:inception_v3_b32" not in validation
    assert models_named(["split:validation"], "gpu-8") == ["zoo:inception_v3_b32", "zoo:inception_v3_b64"]
    assert "zoo:inception_v3" in models_named(["split:validation"], "my.toml")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("resnet5", "did you mean 'resnet5"),
        ("split:tset", "no split 'tset'; it has train, validation, test"),
        ("family:incepton", "did you mean 'inception'"),
    ],
)
def test_bad_graphs(name: str, said: str) -> None:
    with pytest.raises((InvalidInputError, ModelError), match=said):
        models_named([name], "mcm-6x6")


def test_methods_by_name() -> None:
    assert methods_named("slice, genetic,slice,") == ["slice", "genetic"]
    assert methods_named(",".join(METHODS)) == list(METHODS)
    with pytest.raises(InvalidInputError, match="no method 'sliced'; there are greedy, random"):
        methods_named("slice,sliced")
    with pytest.raises(InvalidInputError, match="names no method"):
        methods_named(" , ")


@pytest.mark.parametrize(
    "record",
    [
        Record(MATCH, error="it did not end in time"),
        Record(
            MATCH, 290, 1e-4, (Point(1, 0.1, 2e-4), Point(7, 0.3, 1e-4)), 90, 10.1, 5e-5, "FEASIBLE", ("n",)
        ),
    ],
)
def test_records_survive_json(record: Record) -> None:
    text = json.dumps(record.to_dict(), allow_nan=False)
    assert Record.from_dict(json.loads(text)) == record


def test_what_a_match_says() -> None:
    assert MATCH.graph == "resnet50"
    assert (MATCH.limits.budget_s, MATCH.limits.evaluations) == (10.0, None)
    assert math.isinf(Match("a.onnx", "t", "slice", 0, max_evaluations=3).limits.budget_s)
    assert Record(MATCH, curve=(Point(1, 0.1, 2e-4), Point(7, 0.3, 1e-4))).time_to_best_s == 0.3
