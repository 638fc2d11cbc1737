"""Numeric types: names, widths, and the type a tensor is costed in."""

from __future__ import annotations

from typing import Final

import numpy as np

from go_opt.errors import InvalidInputError

# Bits of each type. Its position in this table is the code stored in graphs: append, never reorder.
_BITS: Final[dict[str, int]] = {
    "float64": 64, "float32": 32, "float16": 16, "bfloat16": 16, "float8_e4m3": 8, "float8_e5m2": 8,
    "int64": 64, "int32": 32, "int16": 16, "int8": 8, "int4": 4,
    "uint64": 64, "uint32": 32, "uint16": 16, "uint8": 8, "uint4": 4,
    "bool": 8, "complex64": 64, "complex128": 128, "string": 64,
}  # fmt: skip
DTYPES: Final[tuple[str, ...]] = tuple(_BITS)
_ALIASES: Final[dict[str, str]] = {
    "f64": "float64", "double": "float64", "f32": "float32", "fp32": "float32", "float": "float32",
    "f16": "float16", "fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3",
    "float8_e4m3fn": "float8_e4m3", "float8_e4m3fnuz": "float8_e4m3", "float8_e4m3b11fnuz": "float8_e4m3",
    "float8_e5m2fnuz": "float8_e5m2", "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8",
    "bool_": "bool",
}  # fmt: skip

DTYPE_NAMES: Final = (*DTYPES, *_ALIASES)  # all names that :func:`dtype_code` accepts
DTYPE_CODE: Final[dict[str, int]] = {name: code for code, name in enumerate(DTYPES)}
DTYPE_BITS: Final[np.ndarray] = np.array([*_BITS.values()], dtype=np.int64)
IS_FLOATING: Final[np.ndarray] = np.array([name.startswith("float") or name == "bfloat16" for name in DTYPES])


def dtype_code(name: str, *, field: str = "dtype") -> int:
    """The code of a type's name or alias (``"bf16"``, ``"float32"`` …)."""
    code = DTYPE_CODE.get(_ALIASES.get(name, name))
    if code is None:
        raise InvalidInputError(f"{field}: unknown dtype {name!r}.", field=field)
    return code


def costed_dtype(codes: np.ndarray, native_dtype: str, precision: str) -> np.ndarray:
    """The types in which tensors are costed: floating-point types become the target's native type.

    With ``precision="as-is"`` every tensor keeps the model's type.
    """
    if precision == "as-is":
        return codes
    return np.where(IS_FLOATING[codes], DTYPE_CODE[native_dtype], codes).astype(codes.dtype)


def costs_the_same(source: str, target: str, precision: str) -> bool:
    """Whether a cast does nothing; native precision makes all floating-point types the same."""
    codes = dtype_code(source), dtype_code(target)
    return codes[0] == codes[1] or (precision == "native" and bool(IS_FLOATING[list(codes)].all()))


def size_bytes(elements: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Sizes of tensors: elements times width, rounded up to whole bytes (int4)."""
    sizes: np.ndarray = (elements * DTYPE_BITS[codes] + 7) // 8
    return sizes
