"""Collects the factors and accesses of one op's rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from go_opt.model.rule import Access, Affine, Dimension, Factor, FactorKind, Rule, Shape, fault_of

Attributes = Mapping[str, Any]


class NoRuleError(Exception):
    """The op has no rule for these shapes."""


class RuleMaker:
    """An op whose rule is made: its shapes and attributes, its factors and accesses so far."""

    def __init__(
        self, op_type: str, inputs: Sequence[Shape | None], outputs: Sequence[Shape], attributes: Attributes
    ) -> None:
        self.op_type, self.inputs, self.outputs, self.attributes = op_type, inputs, outputs, attributes
        self._factors: list[Factor] = []
        empty = {place: shape for place, shape in enumerate(inputs) if shape is not None and 0 in shape}
        self.reads: list[Access | None] = [None] * len(inputs)
        for place, shape in empty.items():
            self.reads[place] = tuple(() for _ in shape)  # such as scales that are not given
        self.writes: list[Access | None] = [None] * len(outputs)
        self.packed = set(empty)  # inputs that are stored in another shape than they are read

    def factor(self, name: str, kind: FactorKind, size: int) -> tuple[int, ...]:
        """A dimension that is a new factor; () for one element."""
        if size == 1:
            return ()
        self._factors.append(Factor(name, kind, size))
        return (len(self._factors) - 1,)

    def factors(self, name: str, kind: FactorKind, sizes: Sequence[int]) -> Access:
        """Dimensions that are new factors; their names are numbered."""
        return tuple(self.factor(f"{name}{i}", kind, size) for i, size in enumerate(sizes))

    def input(self, place: int) -> Shape:
        shape = self.inputs[place]
        if shape is None:
            raise NoRuleError
        return shape

    def has(self, place: int) -> bool:
        return place < len(self.inputs) and self.inputs[place] is not None

    def axis(self, rank: int, default: int = -1) -> int:
        axis = int(self.attributes.get("axis", default))
        if not -rank <= axis < rank:
            raise NoRuleError
        return axis % rank

    def aligned(self, shape: Shape, dimensions: Access) -> Access:
        """Dimensions of a tensor that is broadcast to those given; the last ones are aligned."""
        behind = dimensions[len(dimensions) - len(shape) :] if len(shape) <= len(dimensions) else None
        if behind is None:
            raise NoRuleError
        return tuple(
            () if size == 1 else self.exact(size, dimension)
            for size, dimension in zip(shape, behind, strict=True)
        )

    def exact(self, size: int, dimension: Dimension) -> Dimension:
        """The dimension, which must have that size."""
        found = math.prod(
            piece.size if isinstance(piece, Affine) else self._factors[piece].size for piece in dimension
        )
        if found != size:
            raise NoRuleError
        return dimension

    def read_rest(self, dimensions: Access, start: int = 1) -> None:
        """Inputs from ``start`` on are broadcast to the dimensions."""
        for place in range(start, len(self.inputs)):
            if self.has(place) and self.reads[place] is None:
                self.reads[place] = self.aligned(self.input(place), dimensions)

    def read_whole(self) -> None:
        """Inputs that have no access yet are read whole by every part."""
        for place, shape in enumerate(self.inputs):
            if shape is not None and self.reads[place] is None:
                self.reads[place] = self.factors(f"w{place}_", "whole", shape)

    def write_all(self, dimensions: Access) -> None:
        """All results have the dimensions given, or are broadcast to them."""
        for place, shape in enumerate(self.outputs):
            self.writes[place] = self.aligned(shape, dimensions)

    def rule(self) -> Rule | None:
        """The rule; None if it is faulty, or if an input or result has no access or another shape."""
        places = [place for place, shape in enumerate(self.inputs) if shape is not None]
        reads = tuple(one for place in places if (one := self.reads[place]) is not None)
        writes = tuple(one for one in self.writes if one is not None)
        if len(reads) < len(places) or len(writes) < len(self.outputs):
            return None
        rule = Rule(tuple(self._factors), reads, writes)
        given = [*zip(writes, self.outputs, strict=True)]
        given += [
            (access, self.inputs[place] or ())
            for place, access in zip(places, reads, strict=True)
            if place not in self.packed
        ]
        has_shapes = all(rule.shape(access) == shape for access, shape in given)
        return rule if has_shapes and not fault_of(rule) else None
