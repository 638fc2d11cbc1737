"""Rules of ops that work element by element or along axes of one tensor."""

from __future__ import annotations

from typing import Final

from go_opt.model.rule import Access, FactorKind, Shape
from go_opt.model.rules.maker import NoRuleError, RuleMaker, names
from go_opt.model.rules.moves import or_whole


def elementwise(op: RuleMaker) -> None:
    dimensions = op.factors("d", "parallel", op.outputs[0])
    op.read_rest(dimensions, start=0)
    op.write_all(dimensions)


def per_channel(op: RuleMaker) -> None:
    """Scales and shifts of the elements along one axis."""
    dimensions = op.factors("d", "parallel", op.outputs[0])
    along = op.axis(len(dimensions), 1) if len(dimensions) > 1 else 0
    op.reads[0] = op.aligned(op.input(0), dimensions)
    for place in range(1, len(op.inputs)):
        if op.has(place):
            shape = op.input(place)
            is_of_axis = len(shape) == 1 and shape[0] != 1
            op.reads[place] = (
                (op.exact(shape[0], dimensions[along]),) if is_of_axis else op.aligned(shape, dimensions)
            )
    op.write_all(dimensions)


def _along(op: RuleMaker, axes: set[int]) -> None:
    """A result element needs all elements along ``axes``."""
    shape = op.outputs[0]
    dimensions = tuple(
        op.factor(f"d{i}", "whole" if i in axes else "parallel", size) for i, size in enumerate(shape)
    )
    op.read_rest(dimensions, start=0)
    op.write_all(dimensions)


def along_axis(op: RuleMaker) -> None:
    rank = len(op.outputs[0])
    axes = op.attributes.get("axes")
    _along(op, {axis % rank for axis in axes} if axes is not None else {op.axis(rank)})


def fourier(op: RuleMaker) -> None:
    """DFT: the last axis has the parts of complex numbers, of which there may be one or two."""
    shape, result = op.input(0), op.outputs[0]
    axes = {axis % len(shape) for axis in op.attributes.get("axes") or [op.axis(len(shape), -2), -1]}
    dimensions = op.factors("d", "parallel", [1 if i in axes else size for i, size in enumerate(result)])
    shared = [i not in axes for i in range(len(shape))]
    op.reads[0], op.writes[0] = (
        or_whole(op, name, one, shared, dimensions) for name, one in (("x", shape), ("y", result))
    )
    op.read_whole()


def along_rest(op: RuleMaker) -> None:
    """All axes from one on, or those that are listed."""
    rank = len(op.outputs[0])
    axes = op.attributes.get("axes")
    _along(op, {axis % rank for axis in axes} if axes is not None else set(range(op.axis(rank), rank)))


def along_last(op: RuleMaker) -> None:
    _along(op, {len(op.outputs[0]) - 1})


def normalised_images(op: RuleMaker) -> None:
    """Statistics of each image and channel, or group of channels."""
    batch, channels, *image = op.outputs[0]
    is_grouped = op.op_type == "GroupNormalization"
    groups = int(op.attributes.get("num_groups", channels)) if is_grouped else channels
    of_group = op.factor("g", "parallel", groups)
    channel = (*of_group, *op.factor("c", "whole", channels // groups))
    dimensions = op.factor("n", "parallel", batch), channel, *op.factors("y", "whole", image)
    op.reads[0] = op.aligned(op.input(0), dimensions)
    for place in range(1, len(op.inputs)):
        if op.has(place):
            (size,) = op.input(place)
            op.reads[place] = (op.exact(size, channel if size == channels else of_group),)
    op.write_all(dimensions)


def of_planes(op: RuleMaker) -> None:
    """What a result is depends on where it lies along the last two axes."""
    _along(op, {len(op.outputs[0]) - 2, len(op.outputs[0]) - 1})


def channels_mixed(op: RuleMaker) -> None:
    _along(op, {1})


# Partial results of these are added, or joined by max or min.
_SUMMED: Final = frozenset(names("ReduceL1 ReduceMax ReduceMin ReduceSum ReduceSumSquare"))


def reduced(op: RuleMaker) -> None:
    """Reductions, and positions of the largest or smallest, over some or all axes."""
    shape, result = op.input(0), op.outputs[0]
    kind: FactorKind = "reduction" if op.op_type in _SUMMED else "whole"
    axes = op.attributes.get("axes", op.attributes.get("axis", 0 if op.op_type.startswith("Arg") else None))
    if axes is None and len(shape) == len(result):
        axes = [i for i, (before, after) in enumerate(zip(shape, result, strict=True)) if before != after]
    elif axes is None and not result:
        axes = range(len(shape))
    axes = {axis % len(shape) for axis in ([axes] if isinstance(axes, int) else axes)}
    read = tuple(
        op.factor(f"r{i}", kind, size) if i in axes else op.factor(f"d{i}", "parallel", size)
        for i, size in enumerate(shape)
    )
    kept = tuple(dimension for i, dimension in enumerate(read) if i not in axes)
    if len(result) == len(shape):
        kept = tuple(() if i in axes else dimension for i, dimension in enumerate(read))
    op.reads[0] = read
    for place in range(1, len(op.inputs)):
        if op.has(place) and op.input(place) == shape:  # reduced with the first
            op.reads[place] = read
    op.read_whole()  # axes, and values to begin with
    for place, written in enumerate(op.outputs):
        if len(written) != len(kept):
            raise NoRuleError
        op.writes[place] = op.aligned(written, kept)


def of_matrices(op: RuleMaker) -> None:
    """Factorisations and solutions: the matrices of a batch are independent."""
    shape = op.input(0)
    batch = op.factors("b", "parallel", shape[:-2])

    def access(name: str, one: Shape) -> Access:
        if one[: len(batch)] != shape[:-2]:
            raise NoRuleError
        return (*batch, *op.factors(name, "whole", one[len(batch) :]))

    op.reads = [access(f"x{place}_", op.input(place)) for place in range(len(op.inputs))]
    op.writes = [access(f"y{place}_", written) for place, written in enumerate(op.outputs)]


def of_rows(op: RuleMaker) -> None:
    """The last axis is worked on as a whole, with tables that every row reads."""
    dimensions = (
        *op.factors("d", "parallel", op.outputs[0][:-1]),
        op.factor("o", "whole", op.outputs[0][-1]),
    )
    op.reads[0] = (*op.aligned(op.input(0)[:-1], dimensions[:-1]), op.factor("x", "whole", op.input(0)[-1]))
    op.read_whole()
    op.writes[0] = dimensions


def generated(op: RuleMaker) -> None:
    op.read_whole()
    op.writes[0] = op.factors("d", "parallel", op.outputs[0])


def one_hot(op: RuleMaker) -> None:
    axis = op.axis(len(op.outputs[0]))
    dimensions = op.factors("d", "parallel", op.outputs[0])
    op.reads[0] = op.aligned(op.input(0), (*dimensions[:axis], *dimensions[axis + 1 :]))
    op.read_whole()
    op.writes[0] = dimensions


def largest(op: RuleMaker) -> None:
    """TopK: what lies along the axis is not divided."""
    shape, axis = op.input(0), op.axis(len(op.input(0)))
    dimensions = list(op.factors("d", "parallel", [*shape[:axis], 1, *shape[axis + 1 :]]))
    for place, written in enumerate(op.outputs):
        dimensions[axis] = op.factor(f"x{place}", "whole", written[axis])
        op.writes[place] = op.aligned(written, tuple(dimensions))
    dimensions[axis] = op.factor("x", "whole", shape[axis])
    op.reads[0] = tuple(dimensions)
    op.read_whole()
