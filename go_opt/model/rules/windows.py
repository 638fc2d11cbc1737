"""Rules of ops that read a tensor through windows: convolutions, pooling, slices, padding."""

from __future__ import annotations

from go_opt.model.rule import NO_FACTOR, Affine, Dimension, FactorKind
from go_opt.model.rules.maker import NoRuleError, RuleMaker


def _places(layout: str, names: str) -> list[int]:
    """The places of named dimensions; of spatial ones, which are digits, in their order."""
    return [layout.index(name) for name in names]


def _layouts(op: RuleMaker, axes: int, of_weight: str) -> tuple[list[int], list[int], list[int]]:
    """Of image, weight and result: the places of batch or outputs, of channels or inputs, of spatial axes."""
    digits = "".join(map(str, range(axes)))
    of_images = f"N{digits}C" if op.attributes.get("channels_last") else f"NC{digits}"
    image, weight, result = op.attributes.get("layout", (of_images, of_weight + digits, of_images))
    return _places(image, f"NC{digits}"), _places(weight, f"OI{digits}"), _places(result, f"NC{digits}")


def convolution(op: RuleMaker, weight: int = 1) -> None:
    """A grouped convolution; the result is read through windows."""
    image, kernel, result = op.input(0), op.input(weight), op.outputs[0]
    axes = len(image) - 2
    of_image, of_kernel, of_result = _layouts(op, axes, "OI")
    if axes < 1 or any(one != 1 for one in op.attributes.get("lhs_dilation", ())):
        raise NoRuleError
    groups = image[of_image[1]] // kernel[of_kernel[1]]
    batch, group = op.factor("n", "parallel", result[of_result[0]]), op.factor("g", "parallel", groups)
    is_sum = op.op_type != "QLinearConv" and not op.attributes.get("activation")
    kind: FactorKind = "reduction" if is_sum else "whole"  # of what is rounded, or goes through a function
    channels = op.factor("c", kind, kernel[of_kernel[1]])
    features = op.factor("o", "parallel", kernel[of_kernel[0]] // groups)
    windows = [
        _window(op, i, kind, image[of_image[2 + i]], kernel[of_kernel[2 + i]], result[of_result[2 + i]])
        for i in range(axes)
    ]
    read, weights, written = (list[Dimension]([()] * (axes + 2)) for _ in range(3))
    read[of_image[0]], read[of_image[1]] = batch, (*group, *channels)
    weights[of_kernel[0]], weights[of_kernel[1]] = (*group, *features), channels
    written[of_result[0]], written[of_result[1]] = batch, (*group, *features)
    for i, (position, window, seen) in enumerate(windows):
        read[of_image[2 + i]], weights[of_kernel[2 + i]], written[of_result[2 + i]] = seen, window, position
    op.reads[0], op.reads[weight], op.writes[0] = tuple(read), tuple(weights), tuple(written)
    for place in range(len(op.inputs)):
        if op.has(place) and op.reads[place] is None:
            shape = op.input(place)
            is_of_features = len(shape) == 1 and shape[0] > 1
            op.reads[place] = (
                (op.exact(shape[0], (*group, *features)),)
                if is_of_features
                else op.aligned(shape, tuple(written))
            )


def _window(
    op: RuleMaker, axis: int, kind: FactorKind, size: int, window: int, result: int
) -> tuple[Dimension, Dimension, Dimension]:
    """Of one axis of an image: the dimensions of the result, the window and the operand."""
    attributes = op.attributes
    stride = (attributes.get("strides") or [1] * (axis + 1))[axis]
    dilation = (attributes.get("dilations") or [1] * (axis + 1))[axis]
    before = (attributes.get("pads") or [0] * (axis + 1))[axis]
    span = (window - 1) * dilation + 1
    padding = attributes.get("auto_pad", "NOTSET") or "NOTSET"
    if padding.startswith("SAME"):
        missing = max(0, (result - 1) * stride + span - size)
        before = missing // 2 if padding == "SAME_UPPER" else (missing + 1) // 2
    elif padding == "VALID":
        before = 0
    is_plain = window == 1 and stride == 1 and before == 0 and size == result
    if result == 1 and window == size == span and before == 0:  # one window: all of the image
        of_window = op.factor(f"k{axis}", kind, window)
        return (), of_window, of_window
    place = op.factor(f"y{axis}", "parallel" if is_plain else "window", result)
    of_window = op.factor(f"k{axis}", kind, window)
    if is_plain:
        return place, of_window, place
    (along,), (within,) = place or (NO_FACTOR,), of_window or (NO_FACTOR,)
    return place, of_window, (Affine(along, within, stride, dilation, before, size),)


def transposed_convolution(op: RuleMaker) -> None:
    """Each element of the image is multiplied by a window of the weight [in, out / groups, window]."""
    image, kernel, result = op.input(0), op.input(1), op.outputs[0]
    axes, groups = len(image) - 2, int(op.attributes.get("group", 1))
    of_image, of_kernel, of_result = _layouts(op, axes, "IO")
    batch, group = op.factor("n", "parallel", image[of_image[0]]), op.factor("g", "parallel", groups)
    channels = op.factor("c", "reduction", image[of_image[1]] // groups)
    features = op.factor("o", "parallel", kernel[of_kernel[0]])
    read, weights, written = (list[Dimension]([()] * (axes + 2)) for _ in range(3))
    read[of_image[0]], read[of_image[1]] = batch, (*group, *channels)
    weights[of_kernel[0]], weights[of_kernel[1]] = features, (*group, *channels)
    written[of_result[0]], written[of_result[1]] = batch, (*group, *features)
    for i in range(axes):
        read[of_image[2 + i]] = op.factor(f"x{i}", "whole", image[of_image[2 + i]])
        weights[of_kernel[2 + i]] = op.factor(f"k{i}", "whole", kernel[of_kernel[2 + i]])
        written[of_result[2 + i]] = op.factor(f"y{i}", "whole", result[of_result[2 + i]])
    op.reads[0], op.reads[1], op.writes[0] = tuple(read), tuple(weights), tuple(written)
    if op.has(2):
        op.reads[2] = (op.exact(op.input(2)[0], (*group, *features)),)


def pooled(op: RuleMaker) -> None:
    """Windows over the last dimensions, over all of them as JAX's, or over those before the channels.

    Only of the largest do partial results make the result. With the places of the largest, which count over
    the whole operand, there is no rule.
    """
    shape, result = op.input(0), op.outputs[0]
    window = op.attributes["kernel_shape"]
    kind: FactorKind = "reduction" if op.op_type == "MaxPool" else "whole"
    first = 1 if op.attributes.get("channels_last") else len(shape) - len(window)
    if len(op.outputs) > 1:
        raise NoRuleError
    read = list(
        op.factors("d", "parallel", [*shape[:first], *[1] * len(window), *shape[first + len(window) :]])
    )
    written = list(read)
    for i, size in enumerate(window):
        axis = first + i
        written[axis], _, read[axis] = _window(op, i, kind, shape[axis], size, result[axis])
    op.reads[0], op.writes[0] = tuple(read), tuple(written)
    op.read_whole()


def pooled_whole(op: RuleMaker) -> None:
    """One result for each image and channel."""
    kind: FactorKind = "reduction" if op.op_type == "GlobalMaxPool" else "whole"
    kept = op.factors("d", "parallel", op.input(0)[:2])
    op.reads[0] = (*kept, *op.factors("r", kind, op.input(0)[2:]))
    op.writes[0] = op.aligned(op.outputs[0], (*kept, *(() for _ in op.outputs[0][2:])))


def sliced(op: RuleMaker) -> None:
    """Slice: along the axes that it shortens, the operand is read from a start on."""
    shape, result = op.input(0), op.outputs[0]
    if len(shape) != len(result):
        raise NoRuleError
    starts = op.attributes.get("starts")
    axes = op.attributes.get("axes") or range(len(starts or ()))
    steps = op.attributes.get("steps") or [1] * len(starts or ())
    start_of = {
        axis % len(shape): (start, step) for axis, start, step in zip(axes, starts or (), steps, strict=False)
    }
    read, written = list[Dimension](), list[Dimension]()
    for axis, (before, after) in enumerate(zip(shape, result, strict=True)):
        start, step = start_of.get(axis, (0, 1))
        if before == after and step == 1:
            read.append(op.factor(f"d{axis}", "parallel", before))
            written.append(read[-1])
            continue
        first = max(0, start + before) if start < 0 else min(start, before)
        if axis not in start_of or step < 1 or after == 1:
            read.append(op.factor(f"x{axis}", "whole", before))
            written.append(op.factor(f"y{axis}", "whole", after))
            continue
        (place,) = op.factor(f"d{axis}", "window", after)
        read.append((Affine(place, NO_FACTOR, step, 1, -first, before),))
        written.append((place,))
    op.reads[0], op.writes[0] = tuple(read), tuple(written)
    op.read_whole()


def padded(op: RuleMaker) -> None:
    """Padding around a tensor, or as JAX's also between its elements, which are ``dilations`` apart then."""
    shape, result = op.input(0), op.outputs[0]
    pads, axes = op.attributes.get("pads"), op.attributes.get("axes") or range(len(shape))
    before = {axis % len(shape): pad for axis, pad in zip(axes, pads or (), strict=False)}
    is_constant = op.attributes.get("mode", "constant") in ("constant", b"constant")
    apart = op.attributes.get("dilations") or [1] * len(shape)
    read, written = list[Dimension](), list[Dimension]()
    for axis, (old, new) in enumerate(zip(shape, result, strict=True)):
        if old == new and not before.get(axis) and apart[axis] == 1:
            read.append(op.factor(f"d{axis}", "parallel", old))
            written.append(read[-1])
        elif pads is None or not is_constant or new == 1 or apart[axis] != 1:
            read.append(op.factor(f"x{axis}", "whole", old))
            written.append(op.factor(f"y{axis}", "whole", new))
        else:
            (place,) = op.factor(f"d{axis}", "window", new)
            read.append((Affine(place, NO_FACTOR, 1, 1, before.get(axis, 0), old),))
            written.append((place,))
    op.reads[0], op.writes[0] = tuple(read), tuple(written)
    op.read_whole()
