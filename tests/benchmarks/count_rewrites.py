"""Where rules of rewriting would apply in the zoo, and what they could save at most; what each rule saves.

Run: PYTHONPATH=. python tests/benchmarks/count_rewrites.py [--most-ops N] [--every N] [--rules | --losing]

For each rule that the product has not: places, graphs, and the geometric mean over all graphs, on each
target, of the time of all kernels over that without the ops that the rule would remove, as if all else took
as long as before; and the graph in which that is most. Kernels are those of greedy fusion along the order of
the graph.

``--rules``: for the rules that the product has, the estimate of the objective by which the search chooses, as
sent over rewritten, with all rules and without one.

``--losing``: rewrites that lose first, as MetaFlow takes them, by the same estimate, on graphs for training
and validation. From the ways between which the search chooses, a queue takes the best way and adds to it each
possible rewrite, at once in all places with equal operators and sizes; it keeps what is at most ALPHA times
as long as the best. Prints the least of the ways over the best with these steps, for ALPHA = 1 and 1.05,
where that is not 1.
"""

from __future__ import annotations

import argparse
import heapq
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, Final
from unittest.mock import patch

import numpy as np

import go_opt
from go_opt.env import Target, cost_tables, greedy_fusion, loop_roles, zoo_entries
from go_opt.env.kernels.numbering import kernel_seconds, number_kernels
from go_opt.env.rewrites import applying
from go_opt.env.rewrites.draft import Draft, DraftOp
from go_opt.env.rewrites.folding import PRODUCTS
from go_opt.env.rewrites.joining import FUNCTIONS
from go_opt.errors import PlanError
from go_opt.model.graph import Graph
from go_opt.model.op_costs import is_elementwise
from go_opt.model.rule import Affine, factors_in, product_of
from go_opt.result import Request
from go_opt.search.rewriting import choices

OBJECTIVES: Final = {
    "mcm-6x6": Request(rewrite=True),
    "h100-sxm-1": Request(rewrite=True, objective="latency"),
    "gpu-2": Request(rewrite=True, objective="latency"),
}
ON: Final = tuple(OBJECTIVES)
_SHOWN: Final = {
    *FUNCTIONS,
    "Add",
    "Concat",
    "Conv",
    "Div",
    "MatMul",
    "MaxPool",
    "Mul",
    "ReduceSum",
    "Sub",
    "Transpose",
}
Gone = Iterator[list[DraftOp]]  # ops that one application would remove


def _open(draft: Draft, *types: str) -> Iterator[DraftOp]:
    return (op for op in draft.ops.values() if op.op_type in types and draft.is_open(op))


def _is_weight(draft: Draft, tensor: str) -> bool:
    return draft.tensors[tensor].kind == "weight"


def _next(draft: Draft, op: DraftOp) -> DraftOp | None:
    name = draft.only_reader(op.writes[0])
    return None if name is None or not draft.is_open(draft.ops[name]) else draft.ops[name]


def _behind(draft: Draft, op: DraftOp) -> list[DraftOp]:
    """The ops that write what an op reads, each for it alone."""
    names = [draft.producer.get(one) for one in op.operands if draft.only_reader(one) == op.name]
    return [draft.ops[name] for name in names if name is not None]


def _has_weight(draft: Draft, op: DraftOp) -> bool:
    is_product = op.op_type in PRODUCTS and len(op.operands) > 1
    return is_product and _is_weight(draft, op.operands[1]) and not _is_weight(draft, op.operands[0])


def _constants(draft: Draft, op: DraftOp) -> int:
    return sum(_is_weight(draft, one) for one in op.operands)


def repeated(draft: Draft) -> Gone:
    """Common subexpressions, of ops of which a graph shows all attributes."""
    seen: set[tuple] = set()
    for op in (draft.ops[name] for name in draft.topological()):
        key = op.op_type, op.rule, op.operands
        shows = op.op_type in _SHOWN and (len(op.operands) > 1 or not is_elementwise(op.op_type))
        if draft.is_open(op) and (shows or op.op_type in FUNCTIONS) and key in seen:
            yield [op]
        seen.add(key)


def hidden(draft: Draft) -> Gone:
    """The same, if equal op types, operands and rules were enough."""
    seen: set[tuple] = set()
    for op in (draft.ops[name] for name in draft.topological()):
        key = op.op_type, op.rule, op.operands
        if draft.is_open(op) and "Random" not in op.op_type and key in seen:
            yield [op]
        seen.add(key)


def turned_twice(draft: Draft) -> Gone:
    """Transposes of Transposes."""
    for op in _open(draft, "Transpose"):
        if (after := _next(draft, op)) is not None and after.op_type == "Transpose":
            yield [op]


def re_associated(draft: Draft) -> Gone:
    """Products of a product, both with weights, which are fewer FLOPs as one."""
    for op in _open(draft, *PRODUCTS):
        after = _next(draft, op)
        if after is None or not (_has_weight(draft, op) and _has_weight(draft, after)):
            continue
        one, two = (product_of(x.known_rule, [_is_weight(draft, k) for k in x.operands]) for x in (op, after))
        shared = set.intersection(*map(factors_in, (*op.known_rule.operands[:2], op.known_rule.results[0])))
        is_plain = not shared and two.inner == one.columns  # no groups, and windows of one element behind
        if is_plain and one.inner * two.columns <= one.inner * one.columns + two.inner * two.columns:
            yield [op]


def joined_again(draft: Draft) -> Gone:
    """Splits whose parts are joined, and Concats that are split, into the same."""
    for op in _open(draft, "Concat"):
        parts = {draft.producer.get(one) for one in op.operands}
        if len(parts) == 1 and None not in parts and draft.ops[str(*parts)].writes == op.operands:
            yield [op]
        after = _next(draft, op)
        if after is not None and after.op_type == "Split":
            yield [op]


def nested(draft: Draft) -> Gone:
    """Concats of Concats."""
    yield from (
        [op] for op in _open(draft, "Concat") if (after := _next(draft, op)) and after.op_type == "Concat"
    )


def branches(draft: Draft) -> Gone:
    """Sums of two products of one tensor (RepVGG, with 1x1 weights that are enlarged)."""
    for op in _open(draft, "Add"):
        before = _behind(draft, op)
        is_sum = len(before) == 2 and all(_has_weight(draft, one) for one in before)
        if is_sum and before[0].operands[0] == before[1].operands[0]:
            yield [op, before[1]]


def sums_of_products(draft: Draft) -> Gone:
    """Sums of products of two tensors, which are one of both joined."""
    for op in _open(draft, "Add"):
        before = _behind(draft, op)
        is_sum = len(before) == 2 and all(_has_weight(draft, one) for one in before)
        if is_sum and before[0].operands[0] != before[1].operands[0]:
            yield [op]


def scales_before(draft: Draft) -> Gone:
    """Scales and shifts before products; no shift before a convolution that pads or a MatMul."""
    for op in _open(draft, "Add", "BatchNormalization", "Div", "Mul", "Sub"):
        after = [draft.ops[name] for name in draft.readers.get(op.writes[0], ())]
        is_one = _constants(draft, op) == len(op.operands) - 1 > 0 and op.writes[0] not in draft.outputs
        if (
            not is_one
            or not after
            or not all(_has_weight(draft, one) and draft.is_open(one) for one in after)
        ):
            continue
        padded = [
            p.before for one in after for d in one.known_rule.operands[0] for p in d if isinstance(p, Affine)
        ]
        if op.op_type in ("Div", "Mul") or not (any(padded) or any(one.op_type == "MatMul" for one in after)):
            yield [op]


def element_wise_before_concat(draft: Draft) -> Gone:
    """The same function of all that a Concat joins."""
    for op in _open(draft, "Concat"):
        before = _behind(draft, op)
        is_same = len({one.op_type for one in before}) == 1 and before[0].op_type in (*FUNCTIONS, "Max")
        if len(before) == len(op.operands) > 1 and is_same:
            yield before[1:]


def common_factors(draft: Draft) -> Gone:
    """a c + b c."""
    for op in _open(draft, "Add", "Sub"):
        before = _behind(draft, op)
        is_scaled = len(before) == 2 and {one.op_type for one in before} <= {"Div", "Mul"}
        if is_scaled and {*before[0].operands} & {*before[1].operands}:
            yield [before[1]]


def constants_in_turn(draft: Draft) -> Gone:
    """Two shifts, or two scales, one after another."""
    for kinds in (("Add", "Sub"), ("Div", "Mul")):
        for op in _open(draft, *kinds):
            after = _next(draft, op)
            if (
                after is not None
                and after.op_type in kinds
                and _constants(draft, op) == _constants(draft, after) == 1
            ):
                yield [op]


def padding(draft: Draft) -> Gone:
    """Pads before convolutions, if all pad with zeros, which a graph does not show."""
    yield from ([op] for op in _open(draft, "Pad") if (after := _next(draft, op)) and after.op_type == "Conv")


RULES: Final[tuple[Callable[[Draft], Gone], ...]] = (
    repeated, hidden, turned_twice, re_associated, joined_again, nested, branches, sums_of_products,
    scales_before, element_wise_before_concat, common_factors, constants_in_turn, padding,
)  # fmt: skip


def gain(graph: Graph, target: Target, gone: list[str]) -> float:
    """The time of all kernels over that without some ops."""
    tables, order = cost_tables(graph, target), np.arange(graph.num_ops, dtype=np.int32)
    kernel_of = number_kernels(order, greedy_fusion(loop_roles(graph, target.kernel_patterns), order))
    total_s = kernel_seconds(tables, kernel_of.astype(np.int32)).min(axis=0).sum()
    ops = [graph.op_index[name] for name in gone]
    alone = kernel_of.astype(np.int64)
    alone[ops] = kernel_of.max() + 1 + np.arange(len(ops))
    alone = np.unique(alone, return_inverse=True)[1].astype(np.int32)
    seconds = kernel_seconds(tables, alone).min(axis=0)
    left_s = seconds.sum() - seconds[alone[ops]].sum()
    return max(float(total_s / left_s), 1.0)


def leave_one_out(names: Sequence[str]) -> None:
    """Print the gain by the estimate with all rules, and without each."""
    gains: dict[tuple[str, str], dict[str, float]] = {}
    for name, on in product(names, OBJECTIVES):
        graph, target, request = go_opt.load(f"zoo:{name}"), go_opt.target(on), OBJECTIVES[on]
        sent_s, used = choices._estimate_s(graph, target, request), {*applying.RULES}
        for left_out in ("none", *applying.RULES):
            if left_out == "none" or left_out in used:
                rules = {*applying.RULES} - {left_out}
                with patch.object(choices, "possible_rewrites", partial(_possible, rules)):
                    found = choices.rewrites_for(graph, target, request)
                made = applying.with_rewrites(graph, found)
                gain = sent_s / choices._estimate_s(made, target, request)
                used = {one.rule for one in found} if left_out == "none" else used
            else:
                gain = gains["none", on][name]
            gains.setdefault((left_out, on), {})[name] = gain
    for (left_out, on), row in gains.items():
        least, most = (of(row, key=lambda name: row[name]) for of in (min, max))
        ends = f"{row[least]:.3f} ({least}) to {row[most]:.3f} ({most})"
        print(f"{on}, without {left_out}: {_mean(row.values()):.4f}, {ends}, {len(row)} graphs")


MOST_ESTIMATES: Final = 64  # of a graph, a target and an ALPHA


def losing_first(graph: Graph, target: Target, request: Request, alpha: float) -> tuple[float, float]:
    """The least estimate, in seconds, of the ways that the search knows, and with steps that lose first."""
    named = choices.NamedOps(frozenset(), frozenset())
    known, estimate = dict[choices.Rewrites, float](), choices._estimate_s

    def noted(made: Graph, *of: Any) -> float:
        return known.setdefault(made.rewrites, estimate(made, *of))

    with patch.object(choices, "_estimate_s", noted):
        choices.rewrites_for(graph, target, request)
        noted(graph, target, request)
        least_s = min(known.values())
        queue, best_s = [(seconds, i, way) for i, (way, seconds) in enumerate(known.items())], least_s
        heapq.heapify(queue)
        most = len(known) + MOST_ESTIMATES
        while queue and queue[0][0] <= alpha * best_s:
            way = heapq.heappop(queue)[2]
            for ones in choices.alike(graph, named, applying.RULES, way):
                more = (*way, *ones)
                if len(known) >= most:
                    return least_s, best_s
                try:
                    made = applying.with_rewrites(graph, more)
                except PlanError:  # it needs another rewrite first
                    continue
                if more not in known and (seconds := noted(made, target, request)) <= alpha * best_s:
                    heapq.heappush(queue, (seconds, len(known), more))
                    best_s = min(best_s, seconds)
    return least_s, best_s


def bench_losing(most_ops: int, every: int) -> None:
    """Print what steps that lose first are worth."""
    entries = (one for one in zoo_entries() if one.split != "test" and one.ops <= most_ops)
    names = [one.name for one in sorted(entries, key=lambda one: one.ops)][::every]
    gains: dict[tuple[str, float], dict[str, float]] = {}
    for name, on in product(names, OBJECTIVES):
        graph, target, began_s = go_opt.load(f"zoo:{name}"), go_opt.target(on), time.process_time()
        row = dict.fromkeys((1.0, 1.05), 1.0)
        for alpha in row if applying.possible_rewrites(graph) else ():
            before_s, after_s = losing_first(graph, target, OBJECTIVES[on], alpha)
            row[alpha] = before_s / after_s
        for alpha, gain in row.items():
            gains.setdefault((on, alpha), {})[name] = gain
        if max(row.values()) > 1.0:
            shown = ", ".join(f"{gain:.4f}" for gain in row.values())
            print(f"{name} on {on}: {shown}, {time.process_time() - began_s:.1f} s", flush=True)
    for (on, alpha), found in gains.items():
        most, lower = max(found, key=lambda name: found[name]), sum(gain > 1.0 for gain in found.values())
        of = f"{lower} of {len(found)} graphs"
        print(f"{on}, {alpha}: {_mean(found.values()):.5f}, {of}, most {found[most]:.4f} ({most})")


def _possible(rules: Container[str], graph: Graph, of: Sequence[str] = applying.RULES, *given: Any) -> Any:
    return applying.possible_rewrites(graph, tuple(one for one in of if one in rules), *given)


def _mean(gains: Iterable[float]) -> float:
    return float(np.exp(np.mean(np.log(list(gains)))))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--most-ops", type=int, default=3000)
    parser.add_argument("--every", type=int, default=1, help="of how many graphs, by name, one is counted")
    parser.add_argument("--rules", action="store_true", help="of the product, without one each")
    parser.add_argument("--losing", action="store_true", help="rewrites that lose first")
    arguments = parser.parse_args()
    if arguments.losing:
        bench_losing(arguments.most_ops, arguments.every)
        return
    names = sorted(one.name for one in zoo_entries() if one.ops <= arguments.most_ops)[:: arguments.every]
    if arguments.rules:
        leave_one_out(names)
        return
    targets = {name: go_opt.target(name) for name in ON}
    places: dict[str, list[int]] = {rule.__name__: [] for rule in RULES}
    gains: dict[tuple[str, str], dict[str, float]] = {(rule.__name__, on): {} for rule in RULES for on in ON}
    for entry in names:
        graph = go_opt.load(f"zoo:{entry}")
        draft = Draft(graph)
        for rule in RULES:
            found = list(rule(draft))
            places[rule.__name__].append(len(found))
            gone = sorted({op.name for ops in found for op in ops})
            for on, target in targets.items():
                gains[rule.__name__, on][entry] = gain(graph, target, gone) if gone else 1.0
    print(f"{len(next(iter(places.values())))} graphs")
    for name, numbers in places.items():
        print(f"{name}: {sum(numbers)} places in {sum(map(bool, numbers))} graphs")
        for on in ON:
            row = gains[name, on]
            most = max(row, key=lambda graph: row[graph])
            print(f"  {on}: {_mean(row.values()):.4f}, most {row[most]:.3f} ({most})")


if __name__ == "__main__":
    main()
