"""Batching: products of different tensors with one weight become one product of all rows.

``x1 W, x2 W`` are the rows of ``[x1; x2] W``. No path may lead from one product to another: in an unrolled
recurrent net, the products of the inputs of all steps become one, those of its states stay. Element-wise ops
behind each product, the same ones with the same constants, are batched with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile, zip_longest
from typing import Final, NamedTuple

from go_opt.env.rewrites.columns import ACTIVATION, WEIGHT, chains_of, has_views
from go_opt.env.rewrites.draft import Draft, DraftOp, Tensor, ops_of, refused
from go_opt.env.rewrites.names import BATCH, concat_name, joined_operand, merged_name
from go_opt.env.rewrites.siblings import FUNCTIONS, WITH_WEIGHT, joined_op, split_of
from go_opt.model.graph import Rewrite
from go_opt.model.op_costs import OpSignature
from go_opt.model.rule import factors_in
from go_opt.model.rules.table import rule_of

CONCAT: Final = "Concat"
_BATCHED: Final = ("Gemm", "MatMul")


class Rows(NamedTuple):
    """Along which axis the rows of a product are joined: of its activation and result alike."""

    axis: int
    size: int


def rows_of(draft: Draft, op: DraftOp) -> Rows | None:
    """The rows of a product of an activation with a weight; None if it is none, or they are not seen.

    A rule does not say which dimension of one element is which, so that single rows are joined only where
    operand and result have no other.
    """
    rule = op.rule
    if op.op_type not in _BATCHED or rule is None or not draft.is_open(op) or len(op.operands) < 2:
        return None
    if has_views(op):
        return None
    weights = op.operands[WEIGHT:]
    if draft.tensors[op.operands[ACTIVATION]].kind == "weight" or not all(map(draft.is_constant, weights)):
        return None
    read, written = rule.operands[ACTIVATION], rule.results[0]
    if len(read) != len(written) or read[:-1] != written[:-1] or not (read[-1] and written[-1]):
        return None
    of_weights = set[int]().union(*map(factors_in, rule.operands[WEIGHT:]))
    if not {*read[-1], *written[-1]} <= of_weights:  # the inner elements and the columns
        return None
    if draft.tensors[op.operands[ACTIVATION]].elements != dict(op.reads)[op.operands[ACTIVATION]]:
        return None
    for axis, dimension in enumerate(read[:-1]):
        if not dimension and len(read) == 2:
            return Rows(axis, 1)
        if len(dimension) == 1 and isinstance(dimension[0], int) and dimension[0] not in of_weights:
            return Rows(axis, rule.size(dimension[0]))
    return None


def batch(draft: Draft, rewrite: Rewrite) -> None:
    """Apply a rewrite, whose ops are products with one weight, each followed by the ops behind it.

    Raises:
      PlanError: these are not such ops, or a path leads from one to another.
    """
    chains = chains_of(ops_of(draft, rewrite))
    rows = [rows_of(draft, chain[0]) for chain in chains]
    known = [one for one in rows if one is not None]
    if len(chains) < 2 or len(known) < len(chains):
        raise refused(rewrite, "has fewer than two products of a weight")
    pairs = list(zip(chains, known, strict=True))
    if any(_behind(draft, chain[0], one)[: len(chain)] != chain for chain, one in pairs):
        raise refused(rewrite, "has ops that do not follow each other alone")
    if len({tuple(_kinds(draft, *pair)) for pair in pairs}) > 1:
        raise refused(rewrite, "has ops that differ in more than their rows")
    if len({chain[0].operands[ACTIVATION] for chain in chains}) < len(chains):
        raise refused(rewrite, "has products of one tensor")
    if _are_connected(draft, rewrite.ops, [chain[-1].name for chain in chains]):
        raise refused(rewrite, "has products that depend on each other")
    made, tensors = _batched(draft, chains, known)
    draft.replace(rewrite.ops, made, tensors)


def batches(draft: Draft) -> Iterator[Rewrite]:
    """All products that can be batched, with as many as possible each, and as many ops behind them."""
    alike: dict[tuple, list[str]] = {}
    for name in draft.in_order(draft.ops):
        if (rows := rows_of(draft, op := draft.ops[name])) is not None:
            alike.setdefault(next(_kinds(draft, [op], rows)), []).append(name)
    for names in alike.values():
        if len(names) < 2:
            continue
        by_level: dict[int, dict[str, str]] = {}
        for name, level in zip(names, _levels(draft, names), strict=True):
            by_level.setdefault(level, {}).setdefault(draft.ops[name].operands[ACTIVATION], name)
        for found in by_level.values():
            if len(found) > 1:
                yield Rewrite(BATCH, tuple(_longest_chains(draft, list(found.values()))))


def _longest_chains(draft: Draft, heads: Sequence[str]) -> list[str]:
    known = [(draft.ops[head], rows) for head in heads if (rows := rows_of(draft, draft.ops[head]))]
    chains = [_behind(draft, *one) for one in known]
    kinds = [_kinds(draft, chain, rows) for chain, (_, rows) in zip(chains, known, strict=True)]
    length = sum(1 for _ in takewhile(lambda step: len({*step}) == 1, zip_longest(*kinds)))
    return [op.name for chain in chains for op in chain[:length]]


def _behind(draft: Draft, product: DraftOp, rows: Rows) -> list[DraftOp]:
    """A product, and the element-wise ops behind it that can be batched."""
    found, shape = [product], product.known_rule.shape(product.known_rule.results[0])
    while (name := draft.only_reader(found[-1].writes[0])) is not None:
        op, tensor = draft.ops[name], found[-1].writes[0]
        rule = op.rule
        if rule is None or not draft.is_open(op) or op.operands.count(tensor) != 1:
            break
        result, place = rule.results[0], op.operands.index(tensor)
        rest = [i for i in range(len(op.operands)) if i != place]
        is_known = op.op_type in FUNCTIONS if not rest else op.op_type in WITH_WEIGHT and len(rest) == 1
        is_same = rule.operands[place] == result and rule.shape(result) == shape
        is_one_for_all = all(
            draft.is_constant(op.operands[i])
            and factors_in(rule.operands[i]).isdisjoint(result[rows.axis])
            and len(rule.operands[i]) <= len(result)
            for i in rest
        )
        if not (is_known and is_same and is_one_for_all) or len(result[rows.axis]) > 1:
            break
        found.append(op)
    return found


def _kinds(draft: Draft, chain: Sequence[DraftOp], rows: Rows) -> Iterator[tuple]:
    """What the ops of chains that can be batched have in common, one after another."""
    source = chain[0].operands[ACTIVATION]
    for op in chain:
        place = op.operands.index(source)
        rule = op.known_rule.with_length(place, rows.axis, 2)
        types = [draft.tensors[name].dtype for name in (source, *op.writes)]
        others = (*op.operands[:place], *op.operands[place + 1 :])
        yield (op.op_type, op.op_class, op.dtype, op.excluded_kinds, rows.axis, place, others, rule, *types)
        source = op.writes[0]


def _levels(draft: Draft, names: Sequence[str]) -> list[int]:
    """How many of some ops lie on a path to each of them; with the same number, no path connects them."""
    level: dict[str, int] = {}
    members = {*names}
    for name in draft.topological():
        before = (draft.producer.get(tensor) for tensor, _ in draft.ops[name].reads)
        most = max((level[one] for one in before if one is not None), default=0)
        level[name] = most + (name in members)
    return [level[name] for name in names]


def _are_connected(draft: Draft, names: Sequence[str], tails: Sequence[str]) -> bool:
    """Whether a path leads from one of ``tails`` to one of ``names``."""
    left, seen = list(tails), set[str]()
    while left:
        after = {one for tensor in draft.ops[left.pop()].writes for one in draft.readers.get(tensor, ())}
        if not after.isdisjoint(names):
            return True
        left += after - seen
        seen |= after
    return False


def _batched(
    draft: Draft, chains: Sequence[Sequence[DraftOp]], rows: Sequence[Rows]
) -> tuple[list[DraftOp], dict[str, Tensor]]:
    head, number, axis = chains[0][0], len(chains), rows[0].axis
    sources = [chain[0].operands[ACTIVATION] for chain in chains]
    total = sum(one.size for one in rows)
    tensors: dict[str, Tensor] = {}

    def joined(name: str, of: Sequence[str]) -> str:
        elements = sum(draft.tensors[one].elements for one in of)
        tensors[name] = draft.tensors[of[0]]._replace(elements=elements, kind="activation")
        return name

    source = joined(joined_operand(head.name, number, ACTIVATION), sources)
    shapes = tuple(chain[0].known_rule.shape(chain[0].known_rule.operands[ACTIVATION]) for chain in chains)
    whole = tuple(total if i == axis else size for i, size in enumerate(shapes[0]))
    made = [
        replace(
            head,
            name=concat_name(head.name, number),
            op_type=CONCAT,
            op_class="data_movement",
            flops=0.0,
            reads=tuple((name, draft.tensors[name].elements) for name in sources),
            writes=(source,),
            rule=rule_of(OpSignature(CONCAT, shapes, (whole,), {"axis": axis})),
            operands=tuple(sources),
            results=(source,),
        )
    ]
    read = sources[0]
    for alike in zip(*chains, strict=True):
        first = alike[0]
        place = first.operands.index(read)
        operands = tuple(source if i == place else one for i, one in enumerate(first.operands))
        read = first.writes[0]
        source = joined(merged_name(read, number), [op.writes[0] for op in alike])
        made.append(
            joined_op(alike, first.known_rule.with_length(place, axis, total), operands, source, tensors)
        )
    tails = [chain[-1] for chain in chains]
    return [*made, split_of(draft, head.name, tails, axis, made[-1])], tensors
