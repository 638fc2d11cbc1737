"""Models of ``transformers`` that one plain call does not cover."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

from numpy.typing import NDArray

from go_opt.env.zoo.exporters import torch_graph
from go_opt.graph import Graph


def called_graph(
    model: str,
    config: str,
    settings: Mapping[str, Any],
    call: Callable[..., Any],
    inputs: Mapping[str, NDArray],
) -> Graph:
    """What ``call(network, ...)`` computes; ``inputs`` are its other arguments by name.

    It stands in for the network's own ``forward``, which it finds at the network's class.
    """
    import transformers

    network = getattr(transformers, model)(
        getattr(transformers, config)(attn_implementation="eager", **settings)
    )
    network.forward = MethodType(call, network)
    return torch_graph(network, inputs)
