"""Graph arguments of the public API: a :class:`Graph`, or a networkx graph of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from go_opt.common.files import read_json
from go_opt.errors import ModelError
from go_opt.model.codecs.graph_json import graph_from_dict
from go_opt.model.graph import Graph, Precision

if TYPE_CHECKING:
    import networkx as nx


def as_graph(graph: Graph | nx.DiGraph) -> Graph:
    """``graph`` itself, or its import; networkx loads only where it is needed."""
    if isinstance(graph, Graph):
        return graph
    from go_opt.frontends.networkx_frontend import from_networkx

    return from_networkx(graph)


def load_graph_json(path: str | Path, precision: Precision) -> Graph:
    """The graph in a ``.json`` file.

    Raises:
      ModelError, GraphError: the file is missing or malformed.
    """
    data = read_json(path, "graph file", ModelError)
    if isinstance(data, Mapping) and "nodes" in data and "format" not in data:
        from go_opt.frontends.networkx_frontend import from_node_link

        graph = from_node_link(dict(data))
    else:
        graph = graph_from_dict(data)
    return replace(graph, precision=precision)
