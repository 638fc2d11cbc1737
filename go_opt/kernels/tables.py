"""Tables of measured kernels and collectives, and what a target predicts for their rows.

The header says what the rows are; the last column, milliseconds of one call, may be missing:

    m,n,k,milliseconds                                                             products [m, k] x [k, n]
    batch_size,isl,step,num_heads,num_key_value_heads,head_dim,milliseconds        causal attention
    op_name,num_gpus,message_size,milliseconds                                     collectives

``isl`` rows of each sample attend to themselves and to ``step`` cached ones. ``message_size`` is in elements
of the whole buffer. All are of the target's native type.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from go_opt.common.arrays import FloatArray
from go_opt.common.files import open_table
from go_opt.common.suggestion import suggestion
from go_opt.env.gpu.figures import COLLECTIVES, Collective, KernelFigures
from go_opt.env.gpu.forms import Attentions, GpuKernels, Products
from go_opt.env.target import ChipKind, Target
from go_opt.errors import InvalidInputError
from go_opt.model.codecs.fields import shown
from go_opt.model.dtypes import DTYPE_BITS, dtype_code

PRODUCTS: Final = ("m", "n", "k")
ATTENTION: Final = ("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim")
MESSAGES: Final = ("op_name", "num_gpus", "message_size")
MEASURED: Final = "milliseconds"
_KINDS: Final = {PRODUCTS: "products", ATTENTION: "attention", MESSAGES: "collectives"}
_MAY_BE_ZERO: Final = ("step",)
_LEAST: Final = {"num_gpus": 2}
_MOST: Final = 2**40  # of a size
_SPELLED: Final = {"alltoall": "all_to_all"}  # by NCCL's tests


@dataclass(frozen=True, eq=False)
class KernelTable:
    """Rows of one table. Axis ``N`` rows, in the order of the file."""

    source: str
    columns: tuple[str, ...]
    sizes: FloatArray  # [N, sizes]; of collectives, the first is the index in COLLECTIVES
    measured_s: FloatArray | None  # [N]; None without the column

    @property
    def kind(self) -> str:
        """``products``, ``attention`` or ``collectives``."""
        return _KINDS[self.columns]

    def rows(self, index: Any) -> KernelTable:
        """Some of the rows."""
        measured_s = None if self.measured_s is None else self.measured_s[index]
        return replace(self, sizes=self.sizes[index], measured_s=measured_s)

    @property
    def is_decoding(self) -> np.ndarray:
        """[N] True for attention of one row."""
        is_one: np.ndarray = self.sizes[:, 1] == 1
        return is_one


def read_kernel_table(path: str | Path, *, is_measured: bool = False) -> KernelTable:
    """The rows of a CSV file.

    Args:
      is_measured: the column ``milliseconds`` must be there.

    Raises:
      InvalidInputError: the header is unknown, or a row is malformed.
    """
    lines = csv.reader(open_table(path, "kernels"), strict=True)
    source = f"kernels {str(path)!r}"
    try:
        header = tuple(name.strip() for name in next(lines, []))
        columns, has_time = _columns(header, source)
        if is_measured and not has_time:
            raise _wrong(f"{source}: the column {MEASURED} is missing.")
        rows = list(_rows(lines, columns, has_time, source))
    except csv.Error as error:
        raise _wrong(f"{source} is not valid CSV: {error}.") from None
    if not rows:
        raise _wrong(f"{source} has no row below its header.")
    table = np.array(rows)
    return KernelTable(source, columns, table[:, : len(columns)], table[:, -1] * 1e-3 if has_time else None)


def _columns(header: Sequence[str], source: str) -> tuple[tuple[str, ...], bool]:
    for columns in _KINDS:
        for has_time in (False, True):
            if tuple(header) == (*columns, MEASURED)[: len(columns) + has_time]:
                return columns, has_time
        if tuple(header[:-1]) == columns:
            raise _wrong(f"{source}: the last column must be {MEASURED}, not {shown(header[-1])}.")
    known = "; ".join(",".join((*columns, MEASURED)) for columns in _KINDS)
    raise _wrong(f"{source}: unknown header {shown(','.join(header))}; known: {known}.")


def _rows(lines: Any, columns: Sequence[str], has_time: bool, source: str) -> Iterator[list[float]]:
    for fields in lines:
        if not fields:
            continue
        where = f"{source}, line {lines.line_num}"
        if len(fields) != len(columns) + has_time:
            raise _wrong(f"{where}: {len(fields)} fields, must be {len(columns) + has_time}.")
        sizes = [_size(name, text.strip(), where) for name, text in zip(columns, fields, strict=False)]
        by_name = dict(zip(columns, sizes, strict=True))
        if "num_heads" in by_name and by_name["num_heads"] % by_name["num_key_value_heads"]:
            raise _wrong(f"{where}: num_key_value_heads must divide num_heads.")
        yield [*sizes, *([_milliseconds(fields[-1].strip(), where)] if has_time else [])]


def _size(name: str, text: str, where: str) -> float:
    if name == "op_name":
        op = _SPELLED.get(text, text)
        if op not in COLLECTIVES:
            raise _wrong(f"{where}: unknown collective {shown(text)}{suggestion(text, COLLECTIVES)}")
        return float(COLLECTIVES.index(op))
    least = 0 if name in _MAY_BE_ZERO else _LEAST.get(name, 1)
    if not (text.isascii() and text.isdigit() and len(text) < 16 and least <= int(text) <= _MOST):
        raise _wrong(f"{where}: {name} must be a whole number from {least} to {_MOST}, not {shown(text)}.")
    return float(text)


def _milliseconds(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise _wrong(f"{where}: {MEASURED} must be a number above zero, not {shown(text)}.")
    return value


@dataclass(frozen=True)
class Predictor:
    """What figures predict for rows of tables."""

    figures: KernelFigures
    flops_per_s: float  # peak rate of products in the native type
    bytes_per_s: float  # of memory
    element_bytes: float
    collectives: tuple[Collective, ...] = ()

    def seconds(self, table: KernelTable) -> FloatArray:
        """[N] predicted seconds of each row."""
        if table.kind == "collectives":
            return self._collectives_s(table)
        kernels, ones = GpuKernels(self.figures, self.bytes_per_s), np.ones(len(table.sizes))
        types = self.flops_per_s * ones, self.element_bytes * ones
        if table.kind == "attention":
            batch, rows, cached, heads, groups, depth = table.sizes.T
            beside_s = kernels.attention_s(
                Attentions(batch, heads, groups, rows, rows + cached, depth, ones, *types)
            )
        else:
            rows, columns, inner = np.ascontiguousarray(table.sizes.T)
            num_bytes = self.element_bytes * (rows * inner + inner * columns + rows * columns)
            beside_s = kernels.product_s(Products(ones, rows, inner, columns, *types, ones), num_bytes)
        return self.figures.start_s + beside_s

    def _collectives_s(self, table: KernelTable) -> FloatArray:
        op, group, elements = table.sizes.T
        seconds = np.full(len(op), np.nan)
        for one in sorted(self.collectives, key=lambda one: one.group):  # those of one group win
            is_of = (op == COLLECTIVES.index(one.op)) & ((group == one.group) | (one.group == 0))
            seconds[is_of] = one.seconds(elements[is_of] * self.element_bytes, group[is_of])
        if np.isnan(seconds).any():
            first = int(np.flatnonzero(np.isnan(seconds))[0])
            what = f"{COLLECTIVES[int(op[first])]} of {group[first]:.0f} chips"
            raise InvalidInputError(f"the target has no [[collectives]] for {what}.", field="target")
        return seconds


def predictor(target: Target) -> Predictor:
    """What predicts rows on ``target``.

    Raises:
      InvalidInputError: no kind of the target has figures of kernels.
    """
    kind = next((one for one in target.kinds if one.kernels is not None), None)
    if kind is None or kind.kernels is None:
        raise InvalidInputError(
            f"target {target.name!r} has no figures of kernels ([kinds.kernels] in its file).", field="target"
        )
    return predictor_of(target, kind, kind.kernels)


def predictor_of(target: Target, kind: ChipKind, figures: KernelFigures) -> Predictor:
    """What predicts rows on chips of ``kind`` with these ``figures``."""
    code = dtype_code(target.native_dtype)
    rate = float(kind.rates(kind.matrix_flops_per_s, target.native_dtype)[code])
    element_bytes = DTYPE_BITS[code] / 8
    return Predictor(figures, rate, kind.sram_bytes_per_s, float(element_bytes), target.collectives)


def predicted_rows(table: KernelTable, target: Target) -> list[Mapping[str, float]]:
    """``row``, counted from 1 below the header, and ``predicted_s`` of each row."""
    seconds = predictor(target).seconds(table).tolist()
    return [{"row": row, "predicted_s": one} for row, one in enumerate(seconds, start=1)]


def _wrong(message: str) -> InvalidInputError:
    return InvalidInputError(message, field="kernels")
