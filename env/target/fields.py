"""Fields of TOML tables: each says once how its value is read and what a JSON schema says of it.

A dataclass that stands for a table annotates its fields: ``count: Annotated[int, COUNT("Chips.")]``. Every
mistake is one sentence that names the field and what it must be.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Final, get_type_hints

from go_opt.common.suggestion import suggestion
from go_opt.errors import TargetError
from go_opt.model.codecs.fields import shown
from go_opt.model.dtypes import DTYPE_NAMES, DTYPES, dtype_code

MAX_CHARS: Final = 2**20
_MOST_DOTS: Final = 200
_MOST: Final = 2**62 - 1  # largest count
Schema = dict[str, Any]


@dataclass(frozen=True)
class Field:
    """How the value of a field is read, from the value and its path, and its JSON schema."""

    read: Callable[[Any, str], Any]  # raises TargetError
    schema: Schema
    is_optional: bool = False

    def __call__(self, description: str, *, is_optional: bool = False) -> Field:
        return Field(self.read, self.schema | {"description": description}, is_optional)


Fields = Mapping[str, Field]


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of an untrusted text; raises TargetError if it is not TOML or slow to parse."""
    if len(text) > MAX_CHARS:
        raise TargetError(f"a text of {len(text)} characters, the limit is {MAX_CHARS}.", field="target")
    # Parsing is quadratic in the parts of a key. Dots in strings and numbers count too.
    if any(line.count(".") > _MOST_DOTS for line in re.split(r"[\n=,]", text)):
        raise TargetError(f"a key or value has more than {_MOST_DOTS} dots.", field="target")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TargetError(f"not valid TOML: {error}.", field="target") from None
    except (RecursionError, ValueError):  # depth, and an integer of thousands of digits
        raise TargetError("not valid TOML: nested too deep, or a number too long.", field="target") from None


def must_be(path: str, what: str, value: Any) -> TargetError:
    return TargetError(f"{path} must be {what}, not {shown(value)}.", field=path)


def read_table(data: Any, path: str, fields: Fields) -> dict[str, Any]:
    """The values of a table's fields; one that is missing or unknown is an error."""
    _check_table(data, path)
    prefix = f"{path}." if path else ""
    values = {}
    for key, field in fields.items():
        if key in data:
            values[key] = field.read(data[key], prefix + key)
        elif not field.is_optional:
            raise TargetError(f"{prefix}{key} is missing.", field=prefix + key)
    for key in data:
        if key not in fields:
            hint = suggestion(key, sorted(fields))
            raise TargetError(f"unknown field {prefix}{key}{hint}", field=prefix + key)
    return values


def table_schema(fields: Fields) -> Schema:
    return {
        "type": "object",
        "required": [name for name, field in fields.items() if not field.is_optional],
        "properties": {name: field.schema for name, field in fields.items()},
        "additionalProperties": False,
    }


def fields_of(kind: type, needed: Collection[str] = (), **stated: Field) -> dict[str, Field]:
    """The fields of a dataclass that it annotates, or that are ``stated``.

    Those with a default may be left out, but for those that are ``needed``.
    """
    hints = get_type_hints(kind, include_extras=True)
    found = {
        one.name: stated.get(one.name, *getattr(hints[one.name], "__metadata__", (None,))[:1])
        for one in fields(kind)
    }
    defaults = {one.name for one in fields(kind) if {one.default, one.default_factory} != {MISSING}}
    return {
        name: replace(field, is_optional=name in defaults and name not in needed)
        for name, field in found.items()
        if isinstance(field, Field)
    }


def table(fields: Fields, make: Callable[..., Any] = dict) -> Field:
    """A table, as what ``make`` returns for its fields."""
    return Field(lambda value, path: make(**read_table(value, path, fields)), table_schema(fields))


def table_of(kind: type, **stated: Field) -> Field:
    """A table, as a dataclass whose fields it has (:func:`fields_of`)."""
    return table(fields_of(kind, (), **stated), kind)


def rows(row: Field) -> Field:
    """A list of one or more tables."""

    def read(value: Any, path: str) -> tuple[Any, ...]:
        if not isinstance(value, list) or not value:
            raise must_be(path, "a list of one or more tables", value)
        return tuple(row.read(one, f"{path}[{i}]") for i, one in enumerate(value))

    return Field(read, {"type": "array", "minItems": 1, "items": row.schema})


def checked(what: str, is_right: Callable[[Any], bool], schema: Schema) -> Field:
    """A value that passes a test; a list is read as a tuple."""

    def read(value: Any, path: str) -> Any:
        if not is_right(value):
            raise must_be(path, what, value)
        return tuple(value) if isinstance(value, list) else value

    return Field(read, schema)


def one_of(*values: str) -> Field:
    return checked(f"one of {', '.join(values)}", lambda value: value in values, {"enum": list(values)})


def some_of(*values: str) -> Field:
    return checked(
        f"a list of {', '.join(values)}",
        lambda value: isinstance(value, list) and all(item in values for item in value),
        {"type": "array", "items": {"enum": list(values)}},
    )


def counts(length: int) -> Field:
    return checked(
        f"a list of {length} whole numbers of 1 or more",
        lambda value: isinstance(value, list) and len(value) == length and all(map(_is_count, value)),
        {"type": "array", "minItems": length, "maxItems": length, "items": COUNT.schema},
    )


def _check_table(value: Any, path: str) -> None:
    if not isinstance(value, Mapping):
        raise TargetError(f"{path} must be a table.", field=path)


def is_natural(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST


def _is_count(value: Any) -> bool:
    return is_natural(value) and value > 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _read_texts(value: Any, path: str) -> tuple[str, ...]:
    texts = value if isinstance(value, list) else [value]
    if not texts or not all(map(_is_text, texts)):
        raise must_be(path, "a non-empty text, or a list of such", value)
    return tuple(texts)


def _number(what: str, is_right: Callable[[float], bool], schema: Schema) -> Field:
    def read(value: Any, path: str) -> float:
        number = math.nan
        if isinstance(value, int | float) and not isinstance(value, bool):
            with suppress(OverflowError):  # an integer larger than any float
                number = float(value)
        if not math.isfinite(number):
            raise must_be(path, "a finite number", value)
        if not is_right(number):
            raise must_be(path, what, value)
        return number

    return Field(read, {"type": "number"} | schema)


def _read_rates(value: Any, path: str) -> dict[str, float]:
    _check_table(value, path)
    if not value:
        raise must_be(path, "a table with at least one rate", {})
    named = {name if name == "default" else DTYPES[dtype_code(name, field=path)]: name for name in value}
    return {dtype: POSITIVE.read(value[name], f"{path}.{name}") for dtype, name in named.items()}


def _read_rates_by_name(value: Any, path: str) -> dict[str, dict[str, float]]:
    _check_table(value, path)
    return {name: _read_rates(rates, f"{path}.{name}") for name, rates in value.items()}


def _read_dtype(value: Any, path: str) -> str:
    return DTYPES[dtype_code(TEXT.read(value, path), field=path)]


ANY_TEXT: Final = checked("a text", lambda value: isinstance(value, str), {"type": "string"})
TEXT: Final = checked("a non-empty text", _is_text, {"type": "string", "minLength": 1})
TEXTS: Final = Field(
    _read_texts, {"oneOf": [TEXT.schema, {"type": "array", "minItems": 1, "items": TEXT.schema}]}
)
FLAG: Final = checked("true or false", lambda value: isinstance(value, bool), {"type": "boolean"})
POSITIVE: Final = _number("above zero", lambda number: number > 0, {"exclusiveMinimum": 0})
NON_NEGATIVE: Final = _number("zero or more", lambda number: number >= 0, {"minimum": 0})
COUNT: Final = checked(
    "a whole number of 1 or more", _is_count, {"type": "integer", "minimum": 1, "maximum": _MOST}
)
NATURAL: Final = checked(
    "a whole number of 0 or more", is_natural, {"type": "integer", "minimum": 0, "maximum": _MOST}
)
NATURALS: Final = checked(
    "a list of whole numbers of 0 or more",
    lambda value: isinstance(value, list) and bool(value) and all(map(is_natural, value)),
    {"type": "array", "minItems": 1, "items": NATURAL.schema},
)
DTYPE: Final = Field(_read_dtype, {"enum": list(DTYPE_NAMES)})
RATES: Final = Field(
    _read_rates,
    {
        "type": "object",
        "minProperties": 1,
        "properties": dict.fromkeys((*DTYPE_NAMES, "default"), POSITIVE.schema),
        "additionalProperties": False,
    },
)
RATES_BY_NAME: Final = Field(_read_rates_by_name, {"type": "object", "additionalProperties": RATES.schema})
