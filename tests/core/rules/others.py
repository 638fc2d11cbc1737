"""Small random nodes of op types that ONNX does not have: of StableHLO, ONNX Runtime; factorisations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import scipy.linalg
import scipy.special

from tests.core.rules.nodes import Rng, flip, ints, pick, reals, shape_of
from tests.core.rules.parts import Array, Attributes, Node, Operands, Part

# ------------------------------------------------------------------ slices at indices


def slices_at_indices(rng: Rng, op_type: str) -> Node:
    """Indices of some axes; slices that are one element, some or all of an axis."""
    table = shape_of(rng, 1, 3, 3)
    shared = int(len(table) > 1 and flip(rng, 0.3))  # axes of a batch
    named = [axis for axis in range(shared, len(table)) if flip(rng)]
    sizes = [
        1 if axis < shared else int(rng.integers(1, size + 1)) if axis in named else size
        for axis, size in enumerate(table)
    ]
    collapsed = [axis for axis in named if sizes[axis] == 1]
    batch = [*table[:shared], *shape_of(rng, 0, 2, 3)]
    starts = [rng.integers(0, table[axis] - sizes[axis] + 1, tuple(batch)) for axis in named]
    axis = int(rng.integers(shared, len(batch) + 1))
    indices = np.stack(starts, axis) if starts else np.zeros((*batch[:axis], 0, *batch[axis:]), np.int64)
    if not starts:
        return slices_at_indices(rng, op_type)
    windows = [size for i, size in enumerate(sizes) if i >= shared and i not in collapsed]
    rank = len(batch) + len(windows)
    offsets = sorted(int(one) for one in rng.choice(rank, len(windows), replace=False))
    attributes: dict[str, Any] = {
        "axis": axis, "operand_batching_dims": list(range(shared)), "start_index_map": named,
        "slice_sizes": sizes,
    }  # fmt: skip
    if op_type == "gather":
        attributes |= {"offset_dims": offsets, "collapsed_slice_dims": collapsed}
        attributes["start_indices_batching_dims"] = list(range(shared))
        return Node(op_type, (ints(rng, table), indices), attributes, _gather)
    way = pick(rng, ["", "add", "max"])
    outside = iter(batch)
    inside = iter(windows)
    updates = ints(rng, [next(inside) if i in offsets else next(outside) for i in range(rank)])
    attributes |= {"update_window_dims": offsets, "inserted_window_dims": collapsed, "reduction": way}
    attributes["scatter_indices_batching_dims"] = list(range(shared))
    operands = ints(rng, table) * (way != "add"), indices, updates
    return Node(op_type, operands, attributes, _scatter, joined_by=np.maximum if way == "max" else np.add)


def _starts(indices: Array, batch: tuple[int, ...], attributes: Attributes, rank: int) -> list[int]:
    """Where the slice of an index begins."""
    vector = np.moveaxis(indices, attributes["axis"], -1)[batch]
    starts = [0] * rank
    for axis, start in zip(attributes["start_index_map"], vector, strict=True):
        starts[axis] = int(start)
    for axis in attributes["operand_batching_dims"]:
        starts[axis] = batch[axis]
    return starts


def _gather(operands: Operands, attributes: Attributes) -> list[Array]:
    table, indices = operands
    sizes, offsets = attributes["slice_sizes"], attributes["offset_dims"]
    gone = (*attributes["collapsed_slice_dims"], *attributes["operand_batching_dims"])
    batch = np.moveaxis(indices, attributes["axis"], -1).shape[:-1]
    windows = [size for axis, size in enumerate(sizes) if axis not in gone]
    found = np.zeros((*batch, *windows))
    for place in np.ndindex(batch):
        starts = _starts(indices, place, attributes, table.ndim)
        if all(0 <= a <= most - b for a, b, most in zip(starts, sizes, table.shape, strict=True)):
            window = table[tuple(slice(a, a + b) for a, b in zip(starts, sizes, strict=True))]
            found[place] = window.reshape(windows)
    return [np.moveaxis(found, range(len(batch), found.ndim), offsets)]


def _scatter(operands: Operands, attributes: Attributes) -> list[Array]:
    table, indices, updates = operands
    changed, sizes = table.copy(), attributes["slice_sizes"]
    batch = np.moveaxis(indices, attributes["axis"], -1).shape[:-1]
    windows = attributes["update_window_dims"]
    given = np.moveaxis(updates, windows, range(len(batch), updates.ndim))
    ways: dict[str, Callable[..., Any]] = {"": lambda _, new: new, "add": np.add, "max": np.maximum}
    join = ways[attributes["reduction"]]
    for place in np.ndindex(batch):
        starts = _starts(indices, place, attributes, table.ndim)
        at = tuple(slice(a, a + b) for a, b in zip(starts, sizes, strict=True))
        changed[at] = join(changed[at], given[place].reshape(changed[at].shape))
    return [changed]


def slices_of_part(node: Node, part: Part, slices: Sequence[Any]) -> list[Array]:
    """Indices count from the part's first row; slices are as long as the part has them."""
    one, sizes = slices[0].elements, list(node.attributes["slice_sizes"])
    starts = [0] * len(sizes)
    for axis, dimension in enumerate(part.rule.operands[0]):
        if sizes[axis] == part.rule.shape(part.rule.operands[0])[axis]:
            sizes[axis] = one.shape[axis]  # a slice is all that the part has
        elif dimension:
            starts[axis], _ = part.range_of(dimension[0])
    at_last = np.moveaxis(slices[1].elements, node.attributes["axis"], -1)
    here = at_last - np.array([starts[axis] for axis in node.attributes["start_index_map"]])
    moved = np.moveaxis(here, -1, node.attributes["axis"])
    rest = [other.elements for other in slices[2:]]
    return node.run([one, moved, *rest], node.attributes | {"slice_sizes": sizes})


# ------------------------------------------------------------------ factorisations

_OF_ONE: Final[Mapping[str, Callable[..., Any]]] = {
    "Inverse": np.linalg.inv,
    "cholesky": lambda a: np.linalg.cholesky(a @ a.T),
    "eig": np.linalg.eig,
    "eigh": lambda a: np.linalg.eigh(a + a.T),
    "geqp3": lambda a: scipy.linalg.qr(a, pivoting=True),
    "geqrf": scipy.linalg.qr,
    "hessenberg": scipy.linalg.hessenberg,
    "inverse": np.linalg.inv,
    "lu": scipy.linalg.lu,
    "matrix_exp": scipy.linalg.expm,
    "qr": np.linalg.qr,
    "schur": scipy.linalg.schur,
    "svd": np.linalg.svd,
    "tridiagonal": lambda a: scipy.linalg.hessenberg(a + a.T),
}
_OF_SEVERAL: Final[Mapping[str, tuple[str, Callable[..., Any]]]] = {  # m: matrix, v: vector, b: right sides
    "householder_product": ("mv", lambda a, t: a * t),
    "lu_solve": ("mb", np.linalg.solve),
    "ormqr": ("mvb", lambda a, t, b: np.linalg.qr(a * t)[0] @ b),
    "solve": ("mb", np.linalg.solve),
    "triangular_solve": ("mb", np.linalg.solve),
    "tridiagonal_solve": (
        "vvvb",
        lambda low, at, up, b: np.linalg.solve(
            np.diag(at + 2) + np.diag(low[1:], -1) + np.diag(up[:-1], 1), b
        ),
    ),
}


def factorisation(rng: Rng, op_type: str) -> Node:
    """Each matrix of a batch on its own."""
    letters, function = _OF_SEVERAL.get(op_type) or ("m", _OF_ONE[op_type])
    batch, size, sides = shape_of(rng, 1, 2, 3), int(rng.integers(2, 4)), int(rng.integers(1, 3))
    shapes = {"m": [size, size], "v": [size], "b": [size, sides]}
    operands = tuple(reals(rng, [*batch, *shapes[letter]]) for letter in letters)
    operands = (operands[0] + 2 * np.eye(size), *operands[1:]) if letters[0] == "m" else operands

    def run(operands: Operands, attributes: Attributes) -> list[Array]:
        of_batch = operands[-1].shape[: operands[-1].ndim - len(shapes[letters[-1]])]
        rows = []
        for place in np.ndindex(of_batch):
            found = function(*(one[place] for one in operands))
            rows.append(found if isinstance(found, tuple) else (found,))
        return [np.stack(one).reshape(of_batch + one[0].shape) for one in zip(*rows, strict=True)]

    return Node(op_type, operands, {}, run)


FACTORISATIONS: Final = (*_OF_ONE, *_OF_SEVERAL)


def grouped_attention(rng: Rng, op_type: str) -> Node:
    """ONNX Runtime's, with a cache of keys and values, or packed in one operand without it."""
    batch, groups, each, rows, width, past = rng.integers(1, 4, 6).tolist()
    heads = groups * each
    lengths: list[Array | None] = [np.full(batch, past + rows - 1, np.int32), np.array(past + rows, np.int32)]
    cache: list[Array | None] = [reals(rng, [batch, groups, past, width]) for _ in range(2)]
    if flip(rng, 0.3):
        given: list[Array | None] = [reals(rng, [batch, rows, (heads + 2 * groups) * width]), None, None]
    else:
        given = [reals(rng, [batch, rows, one * width]) for one in (heads, groups, groups)]
    return Node(op_type, (*given, *cache, *lengths), {"num_heads": heads, "kv_num_heads": groups}, _grouped)


def _grouped(operands: Operands, attributes: Attributes) -> list[Array]:
    query, key, value, old_key, old_value, *_ = operands
    heads, groups = attributes["num_heads"], attributes["kv_num_heads"]
    if key is None:
        width = query.shape[-1] // (heads + 2 * groups)
        query, key, value = np.split(query, [heads * width, (heads + groups) * width], axis=-1)
    q, k, v = (
        one.reshape(*one.shape[:2], number, -1).swapaxes(1, 2)
        for one, number in ((query, heads), (key, groups), (value, groups))
    )
    k, v = np.concatenate([old_key, k], 2), np.concatenate([old_value, v], 2)
    scores = q @ np.repeat(k, heads // groups, 1).swapaxes(2, 3) / np.sqrt(q.shape[-1])
    behind = np.arange(k.shape[2]) > np.arange(q.shape[2])[:, None] + old_key.shape[2]
    shares = scipy.special.softmax(np.where(behind, -np.inf, scores), -1)
    result = (shares @ np.repeat(v, heads // groups, 1)).swapaxes(1, 2)
    return [result.reshape(*result.shape[:2], -1), k, v]
