"""Sharding rules: over which loops an op runs, and which of them each dimension of its tensors follows.

The terms are those of Shardy (openxla/shardy, "op sharding rule"). A *factor* is one loop. A rule maps each
dimension of each operand and result to factors, major to minor: a product of matrices is
``[(b,), (i,), (k,)], [(k,), (j,)] -> [(b,), (i,), (j,)]``. A dimension of one element has no factor. Operands
are seen in the shape in which the op reads them: a view only groups the dimensions of a tensor differently.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import Final, Literal, NamedTuple

Shape = tuple[int, ...]
# parallel: parts are independent. reduction: in operands only; parts are partial results, which are added (or
# joined by max or min). window: parallel, but some operand is read through a window, so parts overlap.
# whole: a result needs all of it, so it is not divided.
FactorKind = Literal["parallel", "reduction", "window", "whole"]
FACTOR_KINDS: Final[tuple[FactorKind, ...]] = ("parallel", "reduction", "window", "whole")
NO_FACTOR: Final = -1
MAX_SIZE: Final = 2**53  # of a loop, as of the elements of a tensor


class Factor(NamedTuple):
    """One loop of an op."""

    name: str
    kind: FactorKind
    size: int


class Affine(NamedTuple):
    """A dimension that is read at ``stride * factor + dilation * window - before``; outside lies padding."""

    factor: int  # of a result: index into the factors of the rule; NO_FACTOR for one result
    window: int  # the same, of the loop over the window; NO_FACTOR for a window of one element
    stride: int
    dilation: int
    before: int  # elements of padding before the first; negative: the first elements are not read
    size: int  # of the dimension


Dimension = tuple[int | Affine, ...]  # indices of factors, major to minor
Access = tuple[Dimension, ...]  # the dimensions of an operand or result


class Rule(NamedTuple):
    """The loops of an op, and how they run over its operands and results."""

    factors: tuple[Factor, ...]
    operands: tuple[Access, ...]
    results: tuple[Access, ...]

    def shape(self, access: Access) -> Shape:
        """The sizes of the dimensions of an operand or result."""
        return tuple(math.prod(self.size(piece) for piece in dimension) for dimension in access)

    def size(self, piece: int | Affine) -> int:
        """The elements along a factor, or along a dimension that is read through a window."""
        return piece.size if isinstance(piece, Affine) else self.factors[piece].size

    def points(self, factors: set[int]) -> int:
        """The product of the sizes of some factors."""
        return math.prod(self.factors[i].size for i in factors)

    def of_operands(self, places: Sequence[int]) -> Rule:
        """The rule with the operands at ``places`` alone; a sum over the others is not divided."""
        operands = tuple(self.operands[i] for i in places)
        read = set().union(*map(factors_in, operands))
        factors = tuple(
            one._replace(kind="whole") if one.kind == "reduction" and i not in read else one
            for i, one in enumerate(self.factors)
        )
        return self._replace(factors=factors, operands=operands)

    def divided(self, factor: int, sizes: Sequence[int]) -> Rule | None:
        """The rule with several factors, major to minor, instead of one; None if a window lies along it."""
        accesses = (*self.operands, *self.results)
        affine = [
            piece for access in accesses for one in access for piece in one if isinstance(piece, Affine)
        ]
        if any(factor in (piece.factor, piece.window) for piece in affine):
            return None
        name, kind, _ = self.factors[factor]
        parts = [Factor(f"{name}.{i}", kind, size) for i, size in enumerate(sizes)]
        new = (factor, *range(len(self.factors), len(self.factors) + len(sizes) - 1))
        factors = (*self.factors[:factor], parts[0], *self.factors[factor + 1 :], *parts[1:])

        def changed(access: Access) -> Access:
            return tuple(
                tuple(each for piece in one for each in (new if piece == factor else (piece,)))
                for one in access
            )

        return Rule(factors, *(tuple(map(changed, of)) for of in (self.operands, self.results)))

    def with_size(self, factor: int, size: int) -> Rule:
        """The rule with so many elements along a factor."""
        factors = [one._replace(size=size) if i == factor else one for i, one in enumerate(self.factors)]
        return self._replace(factors=tuple(factors))

    def with_length(self, place: int, axis: int, size: int) -> Rule:
        """The rule with so many elements along an axis of its operand at ``place`` and of its first result.

        Both have one parallel factor there, or none as yet.
        """
        if dimension := self.results[0][axis]:
            (factor,) = dimension
            assert isinstance(factor, int), "results are not read through a window"
            return self.with_size(factor, size)
        new = len(self.factors)

        def changed(access: Access) -> Access:
            return (*access[:axis], (new,), *access[axis + 1 :])

        operands = tuple(changed(one) if i == place else one for i, one in enumerate(self.operands))
        results = (changed(self.results[0]), *self.results[1:])
        return Rule((*self.factors, Factor(f"n{new}", "parallel", size)), operands, results)


class Place(NamedTuple):
    """Where a factor, or a dimension that is read through a window, lies in a tensor."""

    piece: int | Affine
    blocks: int  # before it
    size: int
    behind: int  # elements


class Product(NamedTuple):
    """Sizes of a batch of products of matrices, [rows, inner] by [inner, columns]."""

    batch: int
    rows: int
    inner: int
    columns: int


NO_PRODUCT: Final = Product(1, 1, 1, 1)


@lru_cache(maxsize=4096)
def places(rule: Rule, access: Access) -> tuple[Place, ...]:
    """The factors of an operand or result, from major to minor."""
    pieces = [piece for dimension in access for piece in dimension]
    sizes = [rule.size(piece) for piece in pieces]
    blocks = [1, *accumulate(sizes, mul)]
    return tuple(
        Place(piece, before, size, blocks[-1] // (before * size))
        for piece, before, size in zip(pieces, blocks[:-1], sizes, strict=True)
    )


def factors_in(access: Access) -> set[int]:
    """The factors that an operand or result runs over, those of windows included."""
    return set(_factors(access))


def _factors(access: Access) -> Iterator[int]:
    for piece in (piece for dimension in access for piece in dimension):
        if isinstance(piece, Affine):
            yield from (factor for factor in (piece.factor, piece.window) if factor != NO_FACTOR)
        else:
            yield piece


@lru_cache(maxsize=4096)
def fault_of(rule: Rule) -> str:
    """What is wrong with a rule; empty if nothing is."""
    for factor in rule.factors:
        if factor.kind not in FACTOR_KINDS:
            return f"the kind of factor {factor.name!r} must be one of {', '.join(FACTOR_KINDS)}"
        if type(factor.size) is not int or not 1 < factor.size <= MAX_SIZE:
            return f"the size of factor {factor.name!r} must be a whole number of at least 2"
    if len({factor.name for factor in rule.factors}) < len(rule.factors):
        return "two factors have the same name"
    for access in (*rule.operands, *rule.results):
        used = list(_factors(access))
        if any(type(i) is not int or not 0 <= i < len(rule.factors) for i in used):
            return "a dimension names a factor that the rule does not have"
        if len(set(used)) < len(used):
            return "a factor occurs twice in an operand or result"
        for piece in (piece for dimension in access for piece in dimension if isinstance(piece, Affine)):
            numbers = piece.stride, piece.dilation, piece.size
            if any(type(number) is not int or not 1 <= number <= MAX_SIZE for number in numbers):
                return "stride, dilation and size of a window must be whole numbers of at least 1"
            if type(piece.before) is not int or abs(piece.before) > MAX_SIZE:
                return "the padding of a window must be a whole number"
    if any(isinstance(piece, Affine) for access in rule.results for dim in access for piece in dim):
        return "a result cannot be read through a window"
    return _fault_of_kinds(rule)


def _fault_of_kinds(rule: Rule) -> str:
    """Which factor is not where its kind says."""
    read = set().union(*map(factors_in, rule.operands))
    through = {piece.factor for access in rule.operands for dim in access for piece in dim
               if isinstance(piece, Affine)}  # fmt: skip
    for i, factor in enumerate(rule.factors):
        written = [i in factors_in(access) for access in rule.results]
        if factor.kind == "reduction" and (any(written) or i not in read):
            return f"the reduction {factor.name!r} must be over operands, not over a result"
        if factor.kind in ("parallel", "window") and not all(written):
            return f"factor {factor.name!r} must be in every result, since it is {factor.kind}"
        if factor.kind == "parallel" and i in through:
            return f"factor {factor.name!r} must be a window, since an operand is read through one"
    return ""


def multiplicands(rule: Rule) -> tuple[int, ...]:
    """The places of the two operands of a product; () of an op that is none, or several, such as attention.

    They share the factors that the result does not have, as others, such as a bias, do not.
    """
    if len(rule.operands) < 2 or not rule.results:
        return ()
    seen = [factors_in(access) for access in rule.operands]
    written = factors_in(rule.results[0])
    summed = {i for i, one in enumerate(rule.factors) if i not in written
              and (one.kind == "reduction" or sum(i in factors for factors in seen) > 1)}  # fmt: skip
    multiplied = [i for i, factors in enumerate(seen) if factors & summed] if summed else [0, 1]
    if len(multiplied) > 2:  # scales of blocks go over some of them
        multiplied = [i for i in multiplied if summed <= seen[i]]
    if len(multiplied) != 2 or (not summed and any(one.kind == "whole" for one in rule.factors)):
        return ()
    return tuple(multiplied)


def product_of(rule: Rule, is_weight: Sequence[bool]) -> Product:
    """The product that a matrix op is; :data:`NO_PRODUCT` of one that is several, such as attention.

    A convolution is the product that it lowers to. Inner factors are those that two operands share and the
    result does not have, also where they cannot be divided. With a weight there is one product, whose columns
    are all that the weight adds to the result. Of two activations, the one with more elements has the rows.

    Args:
      is_weight: of each operand.
    """
    multiplied, seen = multiplicands(rule), [factors_in(access) for access in rule.operands]
    if not multiplied:
        return NO_PRODUCT
    written = factors_in(rule.results[0])
    (first, has_weight), (second, is_second) = ((seen[i], is_weight[i]) for i in multiplied)
    if has_weight and is_second:
        return NO_PRODUCT
    if has_weight:
        first, second = second, first
    inner = rule.points(first & second - written)
    if has_weight or is_second:
        return Product(1, rule.points(first - second), inner, rule.points(second - first | second & written))
    free = rule.points(first - second), rule.points(second - first)
    return Product(rule.points(first & second & written), max(free), inner, min(free))
