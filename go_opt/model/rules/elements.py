"""Rules of ops that work element by element or along axes of one tensor."""

from __future__ import annotations

from typing import Final

from go_opt.model.op_costs import names
from go_opt.model.rule import Access, FactorKind, Shape
from go_opt.model.rules.maker import NoRuleError, RuleMaker
from go_opt.model.rules.moves import or_whole


def elementwise(op: RuleMaker) -> None:
    if "seed" in op.attributes:
        raise NoRuleError  # parts would draw the same numbers
    dimensions = op.factors("d", "parallel", op.outputs[0])
    op.read_rest(dimensions, start=0)
    op.write_all(dimensions)


def outer(op: RuleMaker) -> None:
    """A matrix plus the outer product of two vectors, as PyTorch's addr."""
    dimensions = op.factors("d", "parallel", op.outputs[0])
    op.reads[0] = op.aligned(op.input(0), dimensions)
    op.reads[1], op.reads[2] = dimensions[:1], dimensions[1:]
    op.write_all(dimensions)


def per_channel(op: RuleMaker) -> None:
    """Scales and shifts of the elements along one axis, or of blocks along it."""
    shape = op.outputs[0]
    along = op.axis(len(shape), 1) if len(shape) > 1 else 0
    if op.attributes.get("training_mode"):
        raise NoRuleError  # statistics of all samples
    dimensions = list(op.factors("d", "parallel", [*shape[:along], 1, *shape[along + 1 :]]))
    block = op.attributes.get("block_size") or 1
    blocks = op.factor("d", "parallel", shape[along] // block) if shape else ()
    if shape:
        dimensions[along] = (*blocks, *op.factor("e", "parallel", block))
    op.reads[0] = op.aligned(op.input(0), tuple(dimensions))
    dimensions_of_blocks = [blocks if axis == along else one for axis, one in enumerate(dimensions)]
    for place in range(1, len(op.inputs)):
        if op.has(place):
            figures = op.input(place)
            is_of_axis = len(figures) == 1 and figures[0] != 1
            op.reads[place] = (
                (op.exact(figures[0], blocks),)
                if is_of_axis
                else op.aligned(figures, tuple(dimensions_of_blocks))
            )
    op.write_all(tuple(dimensions))


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
    axes = None if axes == () else axes  # all axes, or none
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


def experts(op: RuleMaker) -> None:
    """Rows, each with its scores of the experts [rows, experts], go through tables that all of them read."""
    rows = op.factors("d", "parallel", op.outputs[0][:-1])
    op.writes[0] = (*rows, op.factor("o", "whole", op.outputs[0][-1]))
    op.reads[0] = (*op.aligned(op.input(0)[:-1], rows), op.factor("x", "whole", op.input(0)[-1]))
    of_scores = tuple(factor for row in rows for factor in row)
    op.reads[1] = (op.exact(op.input(1)[0], of_scores), op.factor("e", "whole", op.input(1)[1]))
    op.read_whole()


def turned(op: RuleMaker) -> None:
    """RotaryEmbedding of [batch, rows, width] or [batch, heads, rows, width], by two tables.

    The tables are [places, width], with the places [batch, rows], or [batch, rows, width]. ONNX has the
    tables first, ONNX Runtime the places, of which there may be one: that of the first row.
    """
    shape = op.input(0)
    shapes = [op.input(place) if op.has(place) else None for place in range(1, 4)]
    if len(shape) not in (3, 4) or (shapes[0] == shapes[1] == shapes[2]):
        raise NoRuleError  # which one has the places is not known
    places = 1 if shapes[0] != shapes[1] else 3
    is_first = op.has(places) and len(op.input(places)) == 1
    batch, *heads = op.factors("d", "parallel", shape[:-2])
    rows = op.factor("i", "whole" if is_first else "parallel", shape[-2])
    if len(shape) == 3:
        heads = []
    op.reads[0] = op.writes[0] = (batch, *heads, rows, op.factor("o", "whole", shape[-1]))
    for place in range(1, len(op.inputs)):
        if op.has(place) and len(op.input(place)) == (2 if place == places else 3):
            width = () if place == places else (op.factor(f"t{place}", "whole", op.input(place)[2]),)
            op.reads[place] = (*op.aligned(op.input(place)[:2], (batch, rows)), *width)
    op.read_whole()


def generated(op: RuleMaker) -> None:
    if "seed" in op.attributes:
        raise NoRuleError  # parts would draw the same numbers
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
