"""The plan that a search of a way to split begins with."""

from __future__ import annotations

from go_opt.env import Target
from go_opt.model.graph import Graph
from go_opt.model.plan import Split
from go_opt.model.start import Start
from go_opt.result import Request
from go_opt.search.methods.events import may_replicate
from go_opt.search.splits.batch_ways import start_by_batch
from go_opt.search.splits.block_ways import blocks_of_way, start_by_blocks, start_in_turn
from go_opt.search.splits.row_starts import start_by_rows
from go_opt.search.splits.rows import rows_of_way
from go_opt.search.splits.tensor_ways import start_by_tensor


def takes_turns(graph: Graph, target: Target, request: Request) -> bool:
    """Whether the parts of a block are worked off in turn: other inferences keep the other chips busy."""
    is_busy = may_replicate(target, request) or graph.has_scope("sequence")
    return request.max_latency_s is None and is_busy


def start_of_way(
    graph: Graph, split: Graph, way: tuple[Split, ...], target: Target, request: Request, *, takes_early: bool
) -> Start | None:
    """What to begin with; that of the request for a way by columns alone.

    Args:
      graph: of whole ops; ``split`` is that with the parts of ``way``.
      takes_early: see :func:`start_by_rows`.
    """
    replicates = may_replicate(target, request)
    if any(one.collective for one in way):
        is_alone = request.objective == "latency"
        return start_by_tensor(graph, way, target, replicates=replicates and not is_alone)
    has_rows = bool(rows_of_way(graph, way))
    if has_rows and request.objective == "latency":
        return start_by_batch(split, way)
    if blocks_of_way(graph, way):
        if takes_turns(graph, target, request):
            return start_in_turn(graph, way)
        return start_by_blocks(graph, split, way, target, replicates=replicates)
    if has_rows:
        return start_by_rows(graph, split, way, target, replicates=replicates, takes_early=takes_early)
    return request.start
