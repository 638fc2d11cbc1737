"""Importers: models of other tools as :class:`go_opt.model.graph.Graph`.

Each importer loads on first use, so that importing this package loads no JAX, ONNX,
torch or networkx.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from go_opt.frontends.jax_frontend import from_jax as from_jax
    from go_opt.frontends.networkx_frontend import from_networkx as from_networkx
    from go_opt.frontends.networkx_frontend import from_node_link as from_node_link
    from go_opt.frontends.networkx_frontend import to_networkx as to_networkx
    from go_opt.frontends.onnx_frontend import from_onnx as from_onnx
    from go_opt.frontends.stablehlo_frontend import from_stablehlo as from_stablehlo
    from go_opt.frontends.torch_frontend import from_torch as from_torch

_DOORS = {
    "from_jax": "go_opt.frontends.jax_frontend",
    "from_networkx": "go_opt.frontends.networkx_frontend",
    "from_node_link": "go_opt.frontends.networkx_frontend",
    "from_onnx": "go_opt.frontends.onnx_frontend",
    "from_stablehlo": "go_opt.frontends.stablehlo_frontend",
    "from_torch": "go_opt.frontends.torch_frontend",
    "to_networkx": "go_opt.frontends.networkx_frontend",
}

__all__ = sorted(_DOORS)


def __getattr__(name: str) -> Any:
    if name not in _DOORS:
        raise AttributeError(f"module 'go_opt.frontends' has no attribute {name!r}")
    return getattr(import_module(_DOORS[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_DOORS]
