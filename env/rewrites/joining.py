"""Joining: several products become one, whose result is split again.

Products that read the same tensor are *merged*: ``x W1, x W2`` are the columns of ``x [W1 W2]``. Products of
different tensors with one weight are *batched*: ``x1 W, x2 W`` are the rows of ``[x1; x2] W``. No path may
lead from one of these to another: in an unrolled recurrent net, the products of the inputs of all steps
become one, those of its states stay. Element-wise ops behind each product, the same ones in the same order,
are joined with it: ``f(x W1), f(x W2)`` are the columns of ``f(x [W1 W2])``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile, zip_longest
from typing import Final, NamedTuple

from go_opt.env.rewrites.draft import Draft, DraftOp, Tensor, ops_of, refused
from go_opt.env.rewrites.folding import ACTIVATION, PRODUCTS, WEIGHT, columns_of, flat, has_views, op_behind
from go_opt.env.rewrites.names import BATCH, MERGE, concat_name, joined_operand, merged_name, split_name
from go_opt.model.graph import Rewrite
from go_opt.model.op_costs import OpSignature
from go_opt.model.rule import factors_in
from go_opt.model.rules.table import rule_of

CONCAT: Final = "Concat"
SPLIT: Final = "Split"
# Element-wise ops behind products that may be joined: without attributes, or with a constant.
FUNCTIONS: Final = frozenset({"Abs", "Erf", "Exp", "Neg", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh"})
WITH_WEIGHT: Final = frozenset({"Add", "Mul"})
_BATCHED: Final = ("Gemm", "MatMul")


class Joint(NamedTuple):
    """How products are joined."""

    axis: int  # of their results
    of_rows: bool  # batched, with an activation that has the same axis; else merged


def merge(draft: Draft, rewrite: Rewrite) -> None:
    """Apply a rewrite, whose ops are products of one tensor, each followed by the ops behind it.

    Raises:
      PlanError: these are not such ops.
    """
    _join(draft, rewrite, of_rows=False)


def batch(draft: Draft, rewrite: Rewrite) -> None:
    """Apply a rewrite, whose ops are products with one weight, each followed by the ops behind it.

    Raises:
      PlanError: these are not such ops, or a path leads from one to another.
    """
    _join(draft, rewrite, of_rows=True)


def merges(draft: Draft) -> Iterator[Rewrite]:
    """All products that can be merged, with as many ops behind each as possible."""
    for tensor, readers in list(draft.readers.items()):
        names = (one for one in draft.in_order(readers) if draft.ops[one].operands[:1] == (tensor,))
        for alike in _alike(draft, names, of_rows=False):
            yield Rewrite(MERGE, _longest_chains(draft, alike, of_rows=False))


def batches(draft: Draft) -> Iterator[Rewrite]:
    """All products that can be batched, with as many as possible each, and as many ops behind them."""
    for names in _alike(draft, draft.in_order(draft.ops), of_rows=True):
        by_level: dict[int, dict[str, str]] = {}
        for name, level in zip(names, _levels(draft, names), strict=True):
            by_level.setdefault(level, {}).setdefault(draft.ops[name].operands[ACTIVATION], name)
        for found in by_level.values():
            if len(found) > 1:
                yield Rewrite(BATCH, _longest_chains(draft, found.values(), of_rows=True))


def _join(draft: Draft, rewrite: Rewrite, *, of_rows: bool) -> None:
    chains = chains_of(ops_of(draft, rewrite))
    found = (_joint_of(draft, chain[0], of_rows=of_rows) for chain in chains)
    joints = [one for one in found if one is not None]
    if len(chains) < 2 or len(joints) < len(chains):
        raise refused(rewrite, "has fewer than two products of a weight")
    pairs = list(zip(chains, joints, strict=True))
    if any(_behind(draft, chain[0], joint)[: len(chain)] != chain for chain, joint in pairs):
        raise refused(rewrite, "has ops that do not follow each other alone")
    if len({tuple(_kinds(draft, *pair)) for pair in pairs}) > 1:
        apart = "rows" if of_rows else "columns, or read different tensors"
        raise refused(rewrite, f"has ops that differ in more than their {apart}")
    if of_rows and len({chain[0].operands[ACTIVATION] for chain in chains}) < len(chains):
        raise refused(rewrite, "has products of one tensor")
    if of_rows and _are_connected(draft, rewrite.ops, [chain[-1].name for chain in chains]):
        raise refused(rewrite, "has products that depend on each other")
    draft.replace(rewrite.ops, *_joined(draft, chains, joints[0]))


def chains_of(ops: Sequence[DraftOp]) -> list[list[DraftOp]]:
    """Each product with the ops behind it."""
    chains: list[list[DraftOp]] = []
    for op in ops:
        if op.op_type in PRODUCTS or not chains:
            chains.append([])
        chains[-1].append(op)
    return chains


def _joint_of(draft: Draft, op: DraftOp, *, of_rows: bool) -> Joint | None:
    """The axis along which a product of an activation with a weight can be joined with others, if any."""
    if of_rows:
        return rows_of(draft, op)
    columns = columns_of(draft, op)
    is_one = columns is not None and len(columns.factors) == 1  # grouped convolutions have two
    return Joint(columns.axis, of_rows=False) if columns is not None and is_one else None


def rows_of(draft: Draft, op: DraftOp) -> Joint | None:
    """The axis of the rows of a product with a weight: of its activation and result alike.

    A rule does not say which dimension of one element is which, so that single rows are joined only where
    operand and result have no other.
    """
    rule = op.rule
    if op.op_type not in _BATCHED or rule is None or not draft.is_open(op) or len(op.operands) < 2:
        return None
    source, *weights = op.operands
    if has_views(op) or draft.tensors[source].kind == "weight" or not all(map(draft.is_constant, weights)):
        return None
    read, written = rule.operands[ACTIVATION], rule.results[0]
    if len(read) != len(written) or read[:-1] != written[:-1] or not (read[-1] and written[-1]):
        return None
    of_weights = set[int]().union(*map(factors_in, rule.operands[WEIGHT:]))
    if not {*read[-1], *written[-1]} <= of_weights:  # the inner elements and the columns
        return None
    if draft.tensors[source].elements != dict(op.reads)[source]:
        return None
    for axis, dimension in enumerate(read[:-1]):
        is_single = not dimension and len(read) == 2
        is_row = len(dimension) == 1 and isinstance(dimension[0], int) and dimension[0] not in of_weights
        if is_single or is_row:
            return Joint(axis, of_rows=True)
    return None


def _alike(draft: Draft, names: Iterable[str], *, of_rows: bool) -> list[list[str]]:
    """Those of the products ``names`` that can be joined, two or more each."""
    found: dict[tuple, list[str]] = {}
    for name in names:
        op = draft.ops[name]
        if (joint := _joint_of(draft, op, of_rows=of_rows)) is not None:
            found.setdefault(next(_kinds(draft, [op], joint)), []).append(name)
    return [alike for alike in found.values() if len(alike) > 1]


def _longest_chains(draft: Draft, heads: Iterable[str], *, of_rows: bool) -> tuple[str, ...]:
    """Products that can be joined, each with as many ops behind it as can be joined with it."""
    products = [draft.ops[head] for head in heads]
    known = [(op, joint) for op in products if (joint := _joint_of(draft, op, of_rows=of_rows))]
    chains = [_behind(draft, *one) for one in known]
    kinds = [_kinds(draft, chain, joint) for chain, (_, joint) in zip(chains, known, strict=True)]
    length = sum(1 for _ in takewhile(lambda step: len({*step}) == 1, zip_longest(*kinds)))
    return tuple(op.name for chain in chains for op in chain[:length])


def _behind(draft: Draft, product: DraftOp, joint: Joint) -> list[DraftOp]:
    """A product, and the element-wise ops behind it that can be joined."""
    found = [product]
    while (behind := op_behind(draft, product, found[-1])) is not None:
        op, place = behind
        rest, result = [i for i in range(len(op.operands)) if i != place], op.known_rule.results[0]
        is_known = op.op_type in FUNCTIONS if not rest else op.op_type in WITH_WEIGHT and len(rest) == 1
        along, constants = result[joint.axis], [op.known_rule.operands[i] for i in rest]
        if joint.of_rows:  # a constant is the same for all rows
            fits = all(factors_in(one).isdisjoint(along) and len(one) <= len(result) for one in constants)
        else:  # or it has an element for each column
            fits = all(flat(one) == along != () for one in constants)
        is_constant = all(draft.is_constant(op.operands[i]) for i in rest)
        if not (is_known and fits and is_constant) or len(along) > 1:
            break
        found.append(op)
    return found


def _kinds(draft: Draft, chain: Sequence[DraftOp], joint: Joint) -> Iterator[tuple]:
    """What the ops of chains that can be joined have in common, one after another."""
    source = chain[0].operands[ACTIVATION]
    shared = () if joint.of_rows else (source,)
    for op in chain:
        place = op.operands.index(source)
        rule = op.known_rule.with_length(place, joint.axis, 2)
        types = tuple(draft.tensors[name].dtype for name in (*op.operands, *op.writes))
        others = (*op.operands[:place], *op.operands[place + 1 :]) if joint.of_rows else ()
        yield (
            op.op_type,
            op.op_class,
            op.dtype,
            op.excluded_kinds,
            joint,
            place,
            shared,
            others,
            rule,
            types,
        )
        source, shared = op.writes[0], ()


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


def _joined(
    draft: Draft, chains: Sequence[Sequence[DraftOp]], joint: Joint
) -> tuple[list[DraftOp], dict[str, Tensor]]:
    """The ops and tensors in the place of those of ``chains``."""
    head, number, axis = chains[0][0], len(chains), joint.axis
    tensors: dict[str, Tensor] = {}

    def joined(name: str, of: Sequence[str]) -> str:
        elements = sum(draft.tensors[one].elements for one in of)
        tensors[name] = draft.tensors[of[0]]._replace(elements=elements)
        return name

    shapes = [chain[0].known_rule.shape(chain[0].known_rule.results[0]) for chain in chains]
    total = sum(shape[axis] for shape in shapes)
    made: list[DraftOp] = []
    source = read = head.operands[ACTIVATION]
    if joint.of_rows:
        sources = tuple(chain[0].operands[ACTIVATION] for chain in chains)
        source = joined(joined_operand(head.name, number, ACTIVATION), sources)
        tensors[source] = tensors[source]._replace(kind="activation")
        shapes = [chain[0].known_rule.shape(chain[0].known_rule.operands[ACTIVATION]) for chain in chains]
        whole = tuple(total if i == axis else size for i, size in enumerate(shapes[0]))
        signature = OpSignature(CONCAT, tuple(shapes), (whole,), {"axis": axis})
        reads = tuple((name, draft.tensors[name].elements) for name in sources)
        made.append(_moving(concat_name(head.name, number), signature, reads, (source,), head))
    for alike in zip(*chains, strict=True):
        first, touched = alike[0], dict(alike[0].reads)
        place = first.operands.index(read)
        operands = list(first.operands)
        for i, of in enumerate(zip(*(op.operands for op in alike), strict=True)):
            if i == place:
                operands[i] = source
            elif not joint.of_rows:
                operands[i] = joined(joined_operand(first.name, number, i), of)
        read = first.writes[0]
        source = joined(merged_name(read, number), [op.writes[0] for op in alike])
        made.append(
            replace(
                first,
                name=merged_name(first.name, number),
                flops=sum(op.flops for op in alike),
                # What is made is read whole.
                reads=tuple(
                    (one, tensors[one].elements if one in tensors else touched[one]) for one in operands
                ),
                writes=(source,),
                rule=first.known_rule.with_length(place, axis, total),
                operands=tuple(operands),
                results=(source,),
            )
        )
    tails, last = [chain[-1] for chain in chains], made[-1]
    parts = tuple(op.known_rule.shape(op.known_rule.results[0]) for op in tails)
    whole = last.known_rule.shape(last.known_rule.results[0])
    signature = OpSignature(SPLIT, (whole,), parts, {"axis": axis})
    reads, writes = ((source, tensors[source].elements),), tuple(op.writes[0] for op in tails)
    return [*made, _moving(split_name(head.name, number), signature, reads, writes, last)], tensors


def _moving(
    name: str,
    signature: OpSignature,
    reads: tuple[tuple[str, int], ...],
    writes: tuple[str, ...],
    like: DraftOp,
) -> DraftOp:
    """An op that only moves what it reads, on the same chips as another one."""
    operands = tuple(one for one, _ in reads)
    return DraftOp(
        name, signature.op_type, "data_movement", 0.0, like.dtype, reads, writes,
        rule_of(signature), operands, writes, None, like.excluded_kinds,
    )  # fmt: skip
