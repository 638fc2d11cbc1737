"""Searches to try: options of every kind, on zoo graphs of eight families and on random graphs."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

import go_opt
from go_opt.env import Target
from go_opt.errors import InfeasibleError
from go_opt.model.graph import Graph
from go_opt.model.start import OpStart, Start
from go_opt.result import OptimizeResult

# A family each: with branches, heavy embeddings, attention, weights larger than a memory, large activations.
GRAPHS: Final = (
    "inception_v1", "dlrm_kaggle", "patchtst", "gpt2", "unet_segmentation", "resnet34", "gat", "mobilenet_v1",
)  # fmt: skip
OPTIONS: Final[dict[str, tuple[Any, ...]]] = {
    "objective": ("throughput", "latency"),
    "decide": ("all", "placement"),
    "relays": (True, False),
    "replication": (True, False),
    "splits": (True, False),
    "max_latency_s": (None, "100ms"),
    "fidelity": ("analytical", "simulated"),
    "is_constrained": (False, True),
    "starts": (False, True),
}


def drawn_options(rng: np.random.Generator) -> dict[str, Any]:
    """Any objective; of the other options the usual value more often."""
    options = {name: values[int(rng.random() < 0.3)] for name, values in OPTIONS.items()}
    return _consistent(options | {"objective": OPTIONS["objective"][int(rng.integers(2))]})


def each_option() -> list[dict[str, Any]]:
    """The defaults and each other option, for either objective."""
    usual = {name: values[0] for name, values in OPTIONS.items()}
    changes = [{}, *({name: values[1]} for name, values in OPTIONS.items() if name != "objective")]
    found = [
        _consistent(usual | change | {"objective": objective})
        for objective in OPTIONS["objective"]
        for change in changes
    ]
    return [options for i, options in enumerate(found) if options not in found[:i]]


def _consistent(options: dict[str, Any]) -> dict[str, Any]:
    """Only the interval has a limit on the latency beside it."""
    return options | ({"max_latency_s": None} if options["objective"] == "latency" else {})


def search(
    graph: Graph, target: Target, *, is_constrained: bool, starts: bool, **options: Any
) -> OptimizeResult | None:
    """A checked answer; None if there is no plan. In tests, an error in a method is raised."""
    first, last, far = graph.op_names[0], graph.op_names[-1], target.num_chips - 1
    constraints = (go_opt.Pin(last, far), go_opt.Forbid(first, (far,))) if is_constrained else ()
    start = Start({first: OpStart(0), last: OpStart(far)}) if starts else None
    try:
        result = go_opt.optimize(graph, target, constraints=constraints, start=start, policy=None, **options)
    except InfeasibleError:
        return None
    assert result.dropped_methods == ()
    assert go_opt.verify(graph, target, result.plan, constraints=constraints) == []
    assert options["fidelity"] == "simulated" or result.lower_bound_s <= result.objective_s * (1 + 1e-9)
    return result
