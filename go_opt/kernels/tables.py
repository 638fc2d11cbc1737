"""Tables of measured kernels and collectives, and what a target predicts for their rows.

The header says what the rows are; milliseconds of one call may be missing, and may be ``microseconds``,
``seconds``, or ``ms``, ``us``, ``s`` instead. Columns may be in any order, and others are ignored:

    m,n,k,milliseconds                                                             products [m, k] x [k, n]
    batch,m,n,k,milliseconds                                                       as many of each
    batch_size,isl,step,num_heads,num_key_value_heads,head_dim,milliseconds        causal attention
    op_name,num_gpus,message_size,milliseconds                                     collectives

``isl`` rows of each sample attend to themselves and to ``step`` cached ones. ``message_size`` is in elements
of the whole buffer. All are of the target's native type.
"""

from __future__ import annotations

import csv
import itertools
import math
import re
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
BATCHED: Final = ("batch", *PRODUCTS)
ATTENTION: Final = ("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim")
MESSAGES: Final = ("op_name", "num_gpus", "message_size")
MEASURED: Final = "milliseconds"
_KINDS: Final = {BATCHED: "products", PRODUCTS: "products", ATTENTION: "attention", MESSAGES: "collectives"}
_MAY_BE_ZERO: Final = ("step",)
_LEAST: Final = {"num_gpus": 2}
_MOST: Final = 2**40  # of a size
_UNITS: Final = {
    "milliseconds": 1e-3, "ms": 1e-3, "microseconds": 1e-6, "us": 1e-6, "seconds": 1.0, "s": 1.0,
}  # fmt: skip
_WHOLE: Final = re.compile(r"\.0*$")  # as tables of floating-point numbers write sizes
_SEPARATORS: Final = ",;\t"
_SPELLED: Final = {"alltoall": "all_to_all"}  # by NCCL's tests


@dataclass(frozen=True, eq=False)
class KernelTable:
    """Rows of one table. Axis ``N`` rows, in the order of the file."""

    source: str
    columns: tuple[str, ...]
    sizes: FloatArray  # [N, sizes]; of collectives, the first is the index in COLLECTIVES
    measured_s: FloatArray | None  # [N]; None without the column
    ignored: tuple[str, ...] = ()  # other columns of the file

    @property
    def kind(self) -> str:
        """``products``, ``attention`` or ``collectives``."""
        return _KINDS[self.columns]

    def rows(self, index: Any) -> KernelTable:
        """Some of the rows."""
        measured_s = None if self.measured_s is None else self.measured_s[index]
        return replace(self, sizes=self.sizes[index], measured_s=measured_s)

    def batched(self) -> KernelTable:
        """Products with their batch, which is one where no column says it."""
        if self.columns != PRODUCTS:
            return self
        return replace(self, columns=BATCHED, sizes=np.insert(self.sizes, 0, 1.0, axis=1))

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
    source = f"kernels {str(path)!r}"
    texts = open_table(path, "kernels")
    head = next(texts, "")
    separator = max(_SEPARATORS, key=head.count)
    lines = csv.reader(itertools.chain([head], texts), delimiter=separator, strict=True)
    try:
        header = [name.strip().lower() for name in next(lines, [])]
        columns, time = _columns(header, source)
        if is_measured and time is None:
            others = ", ".join(name for name in _UNITS if name != MEASURED)
            raise _wrong(f"{source}: the column {MEASURED} is missing; or one of {others}.")
        rows = list(_rows(lines, header, columns, time, source))
    except csv.Error as error:
        raise _wrong(f"{source} is not valid CSV: {error}.") from None
    if not rows:
        raise _wrong(f"{source} has no row below its header.")
    table = np.array(rows)
    measured_s = None if time is None else table[:, -1] * _UNITS[time]
    ignored = tuple(name for name in header if name not in columns and name != time)
    return KernelTable(source, columns, table[:, : len(columns)], measured_s, ignored)


def _columns(header: Sequence[str], source: str) -> tuple[tuple[str, ...], str | None]:
    """The columns of sizes, and that of times, if there is one."""
    known = next((columns for columns in _KINDS if set(columns) <= set(header)), None)
    times = [name for name in header if name in _UNITS]
    if known is None:
        every = "; ".join(",".join((*columns, MEASURED)) for columns in _KINDS)
        raise _wrong(f"{source}: unknown header {shown(','.join(header))}; known: {every}.")
    if twice := next((name for name in header if header.count(name) > 1 and name), None):
        raise _wrong(f"{source}: the column {shown(twice)} is there twice.")
    if len(times) > 1:
        raise _wrong(f"{source}: the columns {' and '.join(times)} are both times.")
    return known, times[0] if times else None


def _rows(
    lines: Any, header: Sequence[str], columns: Sequence[str], time: str | None, source: str
) -> Iterator[list[float]]:
    place = {name: i for i, name in enumerate(header)}
    for fields in lines:
        if not any(text.strip() for text in fields) or fields[0].startswith("#"):
            continue
        where = f"{source}, line {lines.line_num}"
        if len(fields) != len(header):
            raise _wrong(f"{where}: {len(fields)} fields, must be {len(header)}.")
        by_name = {name: _size(name, fields[place[name]].strip(), where) for name in columns}
        if "num_heads" in by_name and by_name["num_heads"] % by_name["num_key_value_heads"]:
            raise _wrong(f"{where}: num_key_value_heads must divide num_heads.")
        row = [by_name[name] for name in columns]
        yield row if time is None else [*row, _time(time, fields[place[time]].strip(), where)]


def _size(name: str, text: str, where: str) -> float:
    if name == "op_name":
        op = _SPELLED.get(text, text)
        if op not in COLLECTIVES:
            raise _wrong(f"{where}: unknown collective {shown(text)}{suggestion(text, COLLECTIVES)}")
        return float(COLLECTIVES.index(op))
    least, text = 0 if name in _MAY_BE_ZERO else _LEAST.get(name, 1), _WHOLE.sub("", text)
    if not (text.isascii() and text.isdigit() and len(text) < 16 and least <= int(text) <= _MOST):
        raise _wrong(f"{where}: {name} must be a whole number from {least} to {_MOST}, not {shown(text)}.")
    return float(text)


def _time(name: str, text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise _wrong(f"{where}: {name} must be a number above zero, not {shown(text)}.")
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
            batch, rows, columns, inner = np.ascontiguousarray(table.batched().sizes.T)
            num_bytes = self.element_bytes * batch * (rows * inner + inner * columns + rows * columns)
            beside_s = kernels.product_s(Products(batch, rows, inner, columns, *types, ones), num_bytes)
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
