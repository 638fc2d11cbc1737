"""Rules of ops that work element by element or along axes of one tensor, or move elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from go_opt.model.op_costs import names
from go_opt.model.rule import Access, Dimension, FactorKind, Shape
from go_opt.model.rules.maker import NoRuleError, RuleMaker


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


def along(axes_of: Callable[[RuleMaker, int], Iterable[int]]) -> Callable[[RuleMaker], None]:
    """A result element needs all elements along the ``axes`` that are listed, else those for its rank."""

    def make(op: RuleMaker) -> None:
        shape, listed = op.outputs[0], op.attributes.get("axes")
        rank = len(shape)
        axes = {axis % max(1, rank) for axis in (axes_of(op, rank) if listed is None else listed)}
        dimensions = tuple(
            op.factor(f"d{i}", "whole" if i in axes else "parallel", size) for i, size in enumerate(shape)
        )
        op.read_rest(dimensions, start=0)
        op.write_all(dimensions)

    return make


def fourier(op: RuleMaker) -> None:
    """DFT: the last axis has the parts of complex numbers, of which there may be one or two."""
    shape, result = op.input(0), op.outputs[0]
    axes = {axis % len(shape) for axis in op.attributes.get("axes") or [op.axis(len(shape), -2), -1]}
    dimensions = op.factors("d", "parallel", [1 if i in axes else size for i, size in enumerate(result)])
    shared = [i not in axes for i in range(len(shape))]
    op.reads[0], op.writes[0] = (
        _or_whole(op, name, one, shared, dimensions) for name, one in (("x", shape), ("y", result))
    )
    op.read_whole()


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


def transposed(op: RuleMaker) -> None:
    shape = op.input(0)
    order = op.attributes.get("perm") or range(len(shape))[::-1]
    read = op.factors("d", "parallel", shape)
    op.reads[0] = read
    op.writes[0] = op.aligned(op.outputs[0], tuple(read[axis] for axis in order))


def joined(op: RuleMaker) -> None:
    """Concat, also of tensors without the axis: what lies along it is not divided."""
    result, axis, number = op.outputs[0], op.axis(len(op.outputs[0])), 0
    dimensions = list(op.factors("d", "parallel", [*result[:axis], 1, *result[axis + 1 :]]))
    for place in range(len(op.inputs)):
        if op.has(place):
            shape = op.input(place)
            kept = len(shape) == len(result)
            number += shape[axis] if kept else 1
            inside = (op.factor(f"x{place}", "whole", shape[axis]),) if kept else ()
            op.reads[place] = op.aligned(shape, (*dimensions[:axis], *inside, *dimensions[axis + 1 :]))
    dimensions[axis] = op.factor("x", "whole", result[axis])
    op.writes[0] = tuple(dimensions)
    if number != result[axis]:
        raise NoRuleError


def parted(op: RuleMaker) -> None:
    """Split, also into slices without their axis."""
    shape = op.input(0)
    axis = op.axis(len(shape), 0)
    dimensions = list(op.factors("d", "parallel", [*shape[:axis], 1, *shape[axis + 1 :]]))
    for place, written in enumerate(op.outputs):
        kept = len(written) == len(shape)
        inside = (op.factor(f"x{place}", "whole", written[axis]),) if kept else ()
        op.writes[place] = op.aligned(written, (*dimensions[:axis], *inside, *dimensions[axis + 1 :]))
    dimensions[axis] = op.factor("x", "whole", shape[axis])
    op.reads[0] = tuple(dimensions)
    op.read_whole()


def tiled(op: RuleMaker) -> None:
    shape, read, written = op.input(0), [], []
    for axis, (old, new) in enumerate(zip(shape, op.outputs[0], strict=True)):
        if new % old:
            raise NoRuleError
        repeats, place = op.factor(f"t{axis}", "parallel", new // old), op.factor(f"d{axis}", "parallel", old)
        read.append(place)
        written.append((*repeats, *place))
    op.reads[0], op.writes[0] = tuple(read), tuple(written)
    op.read_whole()


def resized(op: RuleMaker) -> None:
    """Axes that are not scaled are independent; a length may stay although it is scaled."""
    rank = len(op.input(0))
    axes = [axis % rank for axis in op.attributes.get("axes") or range(rank)]
    scales = dict(zip(axes, op.attributes.get("scales", ()), strict=False))
    if op.attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        scales = dict.fromkeys(axes, 0.0)  # one scale for all, which rounding hides
    if op.attributes.get("coordinate_transformation_mode") in ("tf_crop_and_resize", "tf_half_pixel_for_nn"):
        raise NoRuleError  # these move elements also without a scale
    read, written = [], []
    for axis, (old, new) in enumerate(zip(op.input(0), op.outputs[0], strict=True)):
        stays = old == new and scales.get(axis, 1.0) == 1.0
        read.append(op.factor(f"d{axis}", "parallel" if stays else "whole", old))
        written.append(read[-1] if old == new else op.factor(f"y{axis}", "whole", new))
    op.reads[0], op.writes[0] = tuple(read), tuple(written)
    op.read_whole()


def gathered(op: RuleMaker) -> None:
    """Rows of a table. Parts of the table give the rows that they have, else zeros, and are added."""
    table, indices = op.input(0), op.input(1)
    axis = op.axis(len(table), 0)
    dimensions = list(op.factors("d", "parallel", [*table[:axis], 1, *table[axis + 1 :]]))
    places = op.factors("i", "parallel", indices)
    op.reads[1] = places
    op.writes[0] = op.aligned(op.outputs[0], (*dimensions[:axis], *places, *dimensions[axis + 1 :]))
    if len(op.outputs[0]) != len(table) - 1 + len(indices):
        raise NoRuleError
    dimensions[axis] = op.factor("v", "reduction", table[axis])
    op.reads[0] = tuple(dimensions)


def gathered_elements(op: RuleMaker) -> None:
    """GatherElements and ScatterElements: independent along the axes on which all tensors have as many."""
    shapes = [op.input(place) for place in range(len(op.inputs))]
    axis, result = op.axis(len(shapes[0]), 0), op.outputs[0]
    shared = [i != axis and len({shape[i] for shape in (*shapes, result)}) == 1 for i in range(len(result))]
    dimensions = op.factors(
        "d", "parallel", [size if one else 1 for size, one in zip(result, shared, strict=True)]
    )
    for place, shape in enumerate(shapes):
        op.reads[place] = _or_whole(op, f"x{place}_", shape, shared, dimensions)
    op.writes[0] = _or_whole(op, "y", result, shared, dimensions)


def _or_whole(op: RuleMaker, name: str, shape: Shape, shared: Sequence[bool], dimensions: Access) -> Access:
    return tuple(
        dimension if one else op.factor(f"{name}{i}", "whole", size)
        for i, (size, one, dimension) in enumerate(zip(shape, shared, dimensions, strict=True))
    )


def gathered_nd(op: RuleMaker) -> None:
    """GatherND: each index names a slice of its sample's table."""
    table, indices, shared = op.input(0), op.input(1), int(op.attributes.get("batch_dims", 0))
    last = shared + indices[-1]
    places, rest = op.factors("i", "parallel", indices[:-1]), op.factors("d", "parallel", table[last:])
    op.reads[0] = (*places[:shared], *op.factors("x", "whole", table[shared:last]), *rest)
    op.reads[1] = (*places, op.factor("w", "whole", indices[-1]))
    op.writes[0] = op.aligned(op.outputs[0], (*places, *rest))


def _scattered_nd(op: RuleMaker) -> None:
    """ScatterND: slices of a tensor are replaced, or added to; independent within a slice."""
    table, indices, updates = (op.input(place) for place in range(3))
    named = indices[-1]
    rest = op.factors("d", "parallel", table[named:])
    first = op.factors("x", "whole", table[:named])
    op.reads[0] = op.writes[0] = (*first, *rest)
    if op.attributes.get("reduction") == "add":
        places = op.factors("i", "reduction", indices[:-1])
        op.reads[1] = (*places, op.factor("w", "whole", named))
        op.reads[2] = op.aligned(updates, (*places, *rest))
        return
    op.reads[1] = op.factors("i", "whole", indices)
    op.reads[2] = op.aligned(updates, (*op.factors("u", "whole", updates[: len(indices) - 1]), *rest))


def _updated(op: RuleMaker) -> None:
    """A slice of a tensor is replaced, as JAX's dynamic_update_slice; independent along whole axes."""
    whole, part = op.input(0), op.input(1)
    shared = [a == b for a, b in zip(whole, part, strict=True)]
    dimensions = op.factors(
        "d", "parallel", [size if one else 1 for size, one in zip(whole, shared, strict=True)]
    )
    op.reads[0] = op.writes[0] = _or_whole(op, "x", whole, shared, dimensions)
    op.reads[1] = _or_whole(op, "u", part, shared, dimensions)
    op.read_whole()


def scattered(op: RuleMaker) -> None:
    _updated(op) if op.attributes.get("mode") == "slice" else _scattered_nd(op)


def gathered_slices(op: RuleMaker) -> None:
    """StableHLO's gather: a slice of a table for each index; parts of the table as in :func:`gathered`."""
    result, numbers = op.outputs[0], op.attributes
    offsets, collapsed = numbers["offset_dims"], numbers["collapsed_slice_dims"]
    batches = dict(zip(numbers["operand_batching_dims"], numbers["start_indices_batching_dims"], strict=True))
    of_indices, places = _indices(op, "i", "parallel", {})
    op.reads[1] = of_indices
    known = {axis: of_indices[at] for axis, at in batches.items()}
    sizes = [result[axis] for axis in offsets]
    op.reads[0], inside = _in_slices(op, known, dict.fromkeys(collapsed, "reduction"), sizes)
    op.writes[0] = op.aligned(result, _placed(len(result), offsets, inside, places))


def scattered_slices(op: RuleMaker) -> None:
    """StableHLO's scatter: slices of a table are replaced, or joined with others.

    Slices are independent where they are as long as the table. Updates are parallel to each other only if
    partial results can be added, and positions along the table are never divided.
    """
    updates, numbers = op.input(2), op.attributes
    windows, inserted = numbers["update_window_dims"], numbers["inserted_window_dims"]
    batches = dict(
        zip(numbers["operand_batching_dims"], numbers["scatter_indices_batching_dims"], strict=True)
    )
    kind: FactorKind = "reduction" if numbers.get("reduction") == "add" else "whole"
    of_indices, places = _indices(op, "i", kind, dict.fromkeys(batches.values(), "parallel"))
    op.reads[1] = of_indices
    known = {axis: of_indices[at] for axis, at in batches.items()}
    sizes = [updates[axis] for axis in windows]
    read, inside = _in_slices(op, known, dict.fromkeys(inserted, "whole"), sizes)
    op.reads[0] = op.writes[0] = read
    op.reads[2] = op.aligned(updates, _placed(len(updates), windows, inside, places))


def _in_slices(
    op: RuleMaker, known: Mapping[int, Dimension], alone: Mapping[int, FactorKind], sizes: Sequence[int]
) -> tuple[Access, list[Dimension]]:
    """The dimensions of a table and of its slices, which are independent where slices are as long.

    Args:
      known: dimensions of the table that indices have as well.
      alone: axes of the table that slices do not have.
      sizes: of a slice, along the others.
    """
    read, inside = list[Dimension](), list[Dimension]()
    for axis, size in enumerate(op.input(0)):
        if axis in known:
            read.append(known[axis])
        elif axis in alone:
            read.append(op.factor(f"v{axis}", alone[axis], size))
        elif sizes[len(inside)] == size:
            read.append(op.factor(f"d{axis}", "parallel", size))
            inside.append(read[-1])
        else:
            read.append(op.factor(f"x{axis}", "whole", size))
            inside.append(op.factor(f"y{axis}", "whole", sizes[len(inside)]))
    return tuple(read), inside


def _indices(
    op: RuleMaker, name: str, kind: FactorKind, kinds: Mapping[int, FactorKind]
) -> tuple[Access, Access]:
    """The dimensions of indices, and those of them that do not lie along an index."""
    shape = op.input(1)
    along = op.attributes["axis"] if op.attributes["axis"] >= 0 else len(shape) - 1
    dimensions = tuple(
        op.factor("w", "whole", size) if i == along else op.factor(f"{name}{i}", kinds.get(i, kind), size)
        for i, size in enumerate(shape)
    )
    return dimensions, (*dimensions[:along], *dimensions[along + 1 :])


def _placed(rank: int, axes: Sequence[int], inside: Sequence[Dimension], outside: Access) -> Access:
    """Dimensions ``inside`` at the axes, and ``outside`` at the others in their order."""
    at, rest = dict(zip(axes, inside, strict=True)), iter(outside)
    return tuple(at[axis] if axis in at else next(rest) for axis in range(rank))


def halved(op: RuleMaker) -> None:
    """PyTorch's glu: the halves of one axis are multiplied."""
    shape, result = op.input(0), op.outputs[0]
    (along,) = (axis for axis, (old, new) in enumerate(zip(shape, result, strict=True)) if old == 2 * new)
    dimensions = op.factors("d", "parallel", result)
    read = list(dimensions)
    read[along] = (*op.factor("h", "whole", 2), *dimensions[along])
    op.reads[0], op.writes[0] = op.aligned(shape, tuple(read)), dimensions


def depth_to_space(op: RuleMaker) -> None:
    """Blocks of channels become blocks of images, or the other way round."""
    inverse = op.op_type == "SpaceToDepth"
    deep, flat = (op.outputs[0], op.input(0)) if inverse else (op.input(0), op.outputs[0])
    block = op.attributes["blocksize"]
    batch, channel = op.factor("n", "parallel", deep[0]), op.factor("c", "parallel", flat[1])
    rows, columns = op.factors("y", "parallel", deep[2:])
    down, across = op.factors("b", "parallel", (block, block))
    is_last = op.attributes.get("mode", "DCR") in ("CRD", b"CRD")
    channels = (*channel, *down, *across) if is_last else (*down, *across, *channel)
    of_deep, of_flat = (batch, channels, rows, columns), (batch, channel, (*rows, *down), (*columns, *across))
    op.reads[0], op.writes[0] = (of_flat, of_deep) if inverse else (of_deep, of_flat)


def sampled(op: RuleMaker) -> None:
    """GridSample: places of a grid [batch, …, coordinates] in images of as many channels as the result."""
    batch, channels, *places = op.outputs[0]
    of_batch, of_channel = op.factor("n", "parallel", batch), op.factor("c", "parallel", channels)
    of_places = op.factors("y", "parallel", places)
    op.reads[0] = (
        *op.aligned(op.input(0)[:2], (of_batch, of_channel)),
        *op.factors("x", "whole", op.input(0)[2:]),
    )
    op.reads[1] = op.aligned(op.input(1), (of_batch, *of_places, op.factor("w", "whole", len(places))))
    op.writes[0] = (of_batch, of_channel, *of_places)
