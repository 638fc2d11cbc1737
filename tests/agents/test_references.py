"""The frozen references belong to the shipped graphs, and are better than where methods start."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

import pytest

from go_opt.bench.rivals import RIVALS, Limits, compete, pose
from go_opt.env import load_target, load_zoo, zoo_entries

REFERENCES = tomllib.loads(
    (Path(__file__).resolve().parent.parent / "data" / "references.toml").read_text("utf-8")
)


def test_every_test_graph_of_usual_size_has_one() -> None:
    """But for those with states, which rivals do not know."""
    wanted = {
        entry.name
        for entry in zoo_entries()
        if (entry.split, entry.target) == ("test", "mcm-6x6") and entry.ops <= 6000 and not entry.state_bytes
    }
    assert wanted <= set(REFERENCES)


@pytest.mark.parametrize("name", REFERENCES)
def test_reference(name: str) -> None:
    reference = REFERENCES[name]
    (entry,) = (entry for entry in zoo_entries() if entry.name == name)
    assert entry.split == "test"
    assert reference["graph_fingerprint"] == entry.fingerprint
    assert reference["target_fingerprint"] == load_target(reference["target"]).fingerprint
    assert reference["ops"] == entry.ops
    greedy_s, slice_s = reference["greedy_interval_s"], reference["slice_interval_s"]
    reference_s = reference["reference_interval_s"]
    assert 0 < reference_s <= min(greedy_s, slice_s)
    start_s = greedy_s if math.isfinite(greedy_s) else slice_s
    assert reference["log_gap"] == pytest.approx(math.log(start_s / reference_s))


@pytest.mark.parametrize("name", ["dlrm_kaggle", "egnn", "densenet121"])
def test_references_are_of_the_model_they_name(name: str) -> None:
    reference = REFERENCES[name]
    problem = pose(load_zoo(name), load_target(reference["target"]), relays=False)
    sliced = compete(RIVALS["slice"], problem, Limits(evaluations=1), 0)
    assert sliced.interval_s == pytest.approx(reference["slice_interval_s"], rel=1e-9)
