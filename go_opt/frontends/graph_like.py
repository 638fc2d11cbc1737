"""What the doors take for a graph: a :class:`Graph`, or a networkx graph of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from go_opt.model.graph import Graph

if TYPE_CHECKING:
    import networkx as nx


def as_graph(graph: Graph | nx.DiGraph) -> Graph:
    """``graph`` itself, or its import; networkx loads only where it is needed."""
    if isinstance(graph, Graph):
        return graph
    from go_opt.frontends import from_networkx

    return from_networkx(graph)
