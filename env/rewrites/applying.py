"""Rewrites: what a plan replaces in the graph as sent, before any op is split.

The contract: a graph goes in as it was sent, and one comes out whose outputs and states are the same for all
inputs. Tensors that other ops read keep their names. The result has the fingerprint of the graph as sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from go_opt.env.rewrites.draft import Draft, refused
from go_opt.env.rewrites.folding import bias, biases, fold, folds
from go_opt.env.rewrites.joining import batch, batches, merge, merges
from go_opt.env.rewrites.names import BATCH, BIAS, FOLD, MERGE, TRANSPOSE
from go_opt.env.rewrites.transposing import transpose, transposes
from go_opt.errors import PlanError
from go_opt.model.graph import Graph, Rewrite, with_sequences


class Rule(NamedTuple):
    """How a rewrite of one kind is applied, and all of them found."""

    apply: Callable[[Draft, Rewrite], None]
    find: Callable[[Draft], Iterator[Rewrite]]


_RULES: Final[Mapping[str, Rule]] = {  # in an order in which one may follow another
    FOLD: Rule(fold, folds),
    BATCH: Rule(batch, batches),
    MERGE: Rule(merge, merges),
    TRANSPOSE: Rule(transpose, transposes),
    BIAS: Rule(bias, biases),
}
RULES: Final = tuple(_RULES)
MOST_DRAFTS: Final = 16  # that are kept, of one graph


def with_rewrites(graph: Graph, rewrites: tuple[Rewrite, ...]) -> Graph:
    """The graph with these rewrites, one after another; a graph that has them is returned as it is.

    Raises:
      PlanError: an op is not in the graph, or a rule does not hold for it; or the graph has other rewrites.
    """
    if graph.rewrites == rewrites:
        return graph
    if graph.rewrites:
        raise PlanError("plan: rewrites: the graph has others already.", field="rewrites")
    return with_sequences(_with_rewrites(with_sequences(graph, 1), rewrites), graph.sequences)


@lru_cache(maxsize=16)
def _with_rewrites(graph: Graph, rewrites: tuple[Rewrite, ...]) -> Graph:
    return _draft(graph, rewrites).graph(rewrites)


@lru_cache(maxsize=2)
def _drafts(graph: Graph) -> dict[tuple[Rewrite, ...], Draft]:
    return {(): Draft(graph)}


def _draft(graph: Graph, rewrites: tuple[Rewrite, ...] = ()) -> Draft:
    """The graph with these rewrites, to be changed as a copy: drafts that begin alike are made once."""
    known = _drafts(graph)
    begun = max((one for one in list(known) if rewrites[: len(one)] == one), key=len)
    if begun == rewrites:
        return known[rewrites]
    draft = known[begun].copy()
    for one in rewrites[len(begun) :]:
        apply(draft, one)
    return _kept(known, rewrites, draft)


def _kept(known: dict[tuple[Rewrite, ...], Draft], rewrites: tuple[Rewrite, ...], draft: Draft) -> Draft:
    if len(known) <= MOST_DRAFTS:
        known[rewrites] = draft
    return draft


def apply(draft: Draft, rewrite: Rewrite) -> None:
    """Replace the ops of one rewrite.

    Raises:
      PlanError: there is no such rule, or it does not hold for these ops.
    """
    if rewrite.rule not in _RULES:
        raise refused(rewrite, f"is of no rule: {', '.join(RULES)}")
    _RULES[rewrite.rule].apply(draft, rewrite)


def possible_rewrites(
    graph: Graph, rules: tuple[str, ...] = RULES, given: tuple[Rewrite, ...] = ()
) -> tuple[Rewrite, ...]:
    """What can be rewritten by ``rules`` after the rewrites ``given``, in an order in which all apply."""
    draft, found = _draft(graph, given).copy(), []
    for rule in rules:
        for one in _RULES[rule].find(draft):
            apply(draft, one)
            found.append(one)
    _kept(_drafts(graph), (*given, *found), draft)
    return tuple(found)
