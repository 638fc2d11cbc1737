"""What no ranges exceed: a linear program over the sets of nodes that may serve a layer together.

The nodes with flow in a layer have rates of at least the throughput F together: a *cover*. A node that holds
j layers is in j covers, so that each takes 1/j of it. If covers of all layers, in fractions, need more nodes
of some kinds than there are, F is out of reach. The dual proves it: prices y of kinds, such that each
cover costs at least 1 but all nodes together less than the number of layers. Prices come from the primal by
generating columns; a cover of least cost is a knapsack problem.

Links enter by covers of one node. If prices leave no room for a single cover of two nodes, each layer is
served by one node alone, and all nodes with flow are joined by links that pass F each: those of no connected
part of these links may hold all layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import networkx as nx
import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.common.compiling import compiled
from go_opt.serving.mixed.cluster import Case

PRECISION: Final = 2e-7  # of the bound
_GRID: Final = 4000  # steps of a rate in the relaxed knapsack
_MOST_COVERS: Final = 20_000  # that the exact knapsack looks at
_MOST_COLUMNS: Final = 300
_TINY: Final = 1e-9


@dataclass(frozen=True, eq=False)
class _Items:
    """What a cover is made of: a node of a kind with a number of layers. Axis ``I``."""

    per_s: FloatArray  # [I], descending
    kind: IntArray  # [I]
    share: FloatArray  # [I]: of the node


def upper_bound(case: Case) -> float:
    """Tokens per second that no plan exceeds, links of the source and the sink included."""
    link, nodes = case.link_per_s, case.cluster.num_nodes
    high = min(float(link[nodes, :nodes].sum()), float(link[:nodes, nodes + 1].sum()))
    items = _items(case)
    high = min(high, float(np.bincount(case.cluster.kind_of) @ _most_work(items)) / case.layers)
    low = 0.0
    while high - low > PRECISION * high:
        middle = 0.5 * (low + high)
        if is_out_of_reach(case, items, middle):
            high = middle
        else:
            low = middle
    return high


def _most_work(items: _Items) -> FloatArray:
    """``[kinds]``: layers times tokens per second."""
    most = np.zeros(int(items.kind.max()) + 1)
    np.maximum.at(most, items.kind, items.per_s / items.share)
    return most


def _items(case: Case) -> _Items:
    link, nodes = case.link_per_s, case.cluster.num_nodes
    passed = np.minimum(link[:, :nodes].sum(axis=0), link[:nodes].sum(axis=1))
    rate = np.minimum(case.node_per_s, passed[:, None])
    kinds = len(case.cluster.kinds)
    best = np.zeros((kinds, rate.shape[1]))
    np.maximum.at(best, case.cluster.kind_of, rate)
    kind, held = np.nonzero(best)
    order = np.argsort(-best[kind, held], kind="stable")
    kind, held = kind[order], held[order]
    return _Items(best[kind, held], kind.astype(np.int32), 1.0 / held)


def is_out_of_reach(case: Case, items: _Items, per_s: float) -> bool:
    """Whether the program proves that no plan reaches ``per_s`` tokens per second."""
    number = np.bincount(case.cluster.kind_of, minlength=len(case.cluster.kinds)).astype(float)
    most, prices = _most_layers(items, number, per_s, case.layers)
    if most < case.layers * (1.0 - _TINY):
        return True
    costs = prices[items.kind] * items.share
    two = _least_of_two(items, costs, per_s)
    has_room = most - case.layers >= (two - 1.0) * (1.0 - _TINY)
    return not has_room and not _one_by_one(case, per_s)


def _most_layers(items: _Items, number: FloatArray, per_s: float, layers: int) -> tuple[float, FloatArray]:
    """No nodes serve more layers at the rate; with the prices that prove it, each cover at 1 or more."""
    kinds = len(number)
    basis = np.zeros((kinds, kinds))  # a column: what a cover takes of each kind
    alone = np.ceil(per_s / items.per_s - _TINY) * items.share
    for kind in range(kinds):
        basis[kind, kind] = alone[items.kind == kind].min(initial=np.inf)
    gains = np.ones(kinds)  # layers that a column serves; none of a node that stays idle
    if not np.isfinite(basis).all():
        return np.inf, np.zeros(kinds)
    best, best_prices = np.inf, np.zeros(kinds)
    for _ in range(_MOST_COLUMNS):
        prices = np.linalg.solve(basis.T, gains)
        fair = np.maximum(prices, 0.0)
        cost, column = cheapest_cover(items.per_s, fair[items.kind] * items.share, per_s)
        if cost > 0.0 and number @ fair / cost < best:
            best, best_prices = float(number @ fair / cost), fair / cost
        used = np.linalg.solve(basis, number)
        if best < layers * (1.0 - _TINY) or gains @ used >= best * (1.0 - _TINY):
            break
        cheapest = int(prices.argmin())
        is_idle = prices[cheapest] < -_TINY
        if is_idle:
            entering = np.eye(kinds)[cheapest]
        else:
            entering = np.bincount(items.kind[column], items.share[column], minlength=kinds)
        rates = np.linalg.solve(basis, entering)
        with np.errstate(divide="ignore", invalid="ignore"):
            leaving = int(np.where(rates > 1e-12, used / rates, np.inf).argmin())
        basis[:, leaving], gains[leaving] = entering, 0.0 if is_idle else 1.0
    return best, best_prices


def cheapest_cover(per_s: FloatArray, costs: FloatArray, needed_per_s: float) -> tuple[float, list[int]]:
    """The least cost of items, each as often as one likes, whose rates sum up to what is needed.

    Args:
      per_s: ``[I]`` rates.
      costs: ``[I]``, zero or more.

    Returns:
      The cost and the items; without a proof in time, a cost that none is below, and the best items.
    """
    least = relaxed_costs(_units(per_s, needed_per_s), costs)
    best, best_items, looked_at = math.inf, [], 0
    stack: list[tuple[float, float, tuple[int, ...]]] = [(needed_per_s, 0.0, ())]
    while stack:
        left, cost, chosen = stack.pop()
        if left <= needed_per_s * 1e-12:
            if cost < best:
                best, best_items = cost, list(chosen)
            continue
        if cost + least[_unit(left, needed_per_s)] >= best - 1e-12:
            continue
        looked_at += 1
        if looked_at > _MOST_COVERS:
            return float(least[_GRID]), best_items
        first = chosen[-1] if chosen else 0
        after = [
            (cost + costs[i] + least[_unit(left - per_s[i], needed_per_s)], i)
            for i in range(first, len(costs))
        ]
        after.sort(reverse=True)  # the most promising is taken first
        stack += [(left - per_s[i], cost + costs[i], (*chosen, i)) for bound, i in after if bound < best]
    return best, best_items


def _unit(per_s: float, needed_per_s: float) -> int:
    return max(0, math.ceil(per_s / needed_per_s * _GRID - 1e-9))


def _units(per_s: FloatArray, needed_per_s: float) -> LongArray:
    """Rates in steps of the grid, rounded up: what they cover is never less."""
    return np.minimum(np.ceil(per_s / needed_per_s * _GRID - 1e-9), _GRID).astype(np.int64)


@compiled
def relaxed_costs(units: LongArray, costs: FloatArray) -> FloatArray:
    """``[_GRID + 1]``: the least cost of items that cover so many units."""
    least = np.full(_GRID + 1, np.inf)
    least[0] = 0.0
    for needed in range(1, _GRID + 1):
        for i in range(units.size):
            cost = costs[i] + least[max(0, needed - units[i])]
            least[needed] = min(least[needed], cost)
    return least


def _least_of_two(items: _Items, costs: FloatArray, per_s: float) -> float:
    """No cover of two or more nodes costs less."""
    least = relaxed_costs(_units(items.per_s, per_s), costs)
    pairs = items.per_s[:, None] + items.per_s
    left = np.maximum(np.ceil((per_s - pairs) / per_s * _GRID - 1e-9), 0).astype(np.int64)
    return float((costs[:, None] + costs + least[left]).min())


def _one_by_one(case: Case, per_s: float) -> bool:
    """Whether nodes that pass all tokens alone, over links that do, might hold all layers."""
    nodes = case.cluster.num_nodes
    enough = per_s * (1.0 - 1e-12)
    held = ((case.node_per_s >= enough) * np.arange(case.node_per_s.shape[1])).max(axis=1)
    joined = nx.Graph()
    joined.add_nodes_from(range(nodes))
    joined.add_edges_from(np.argwhere(case.link_per_s[:nodes, :nodes] >= enough).tolist())
    return any(sum(held[node] for node in part) >= case.layers for part in nx.connected_components(joined))
