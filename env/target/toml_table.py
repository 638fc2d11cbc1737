"""Reads the fields of a TOML table with one clear sentence for each mistake."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from go_opt.common.suggestion import suggestion
from go_opt.errors import TargetError
from go_opt.model.codecs.fields import shown
from go_opt.model.dtypes import DTYPES, dtype_code

MAX_CHARS: Final = 2**20
_MOST_DOTS: Final = 200


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


class TomlTable:
    """Reads the fields of one TOML table; a field that nothing reads is an error."""

    def __init__(self, data: Mapping[str, Any], path: str) -> None:
        if not isinstance(data, Mapping):
            raise TargetError(f"{path.rstrip('.')} must be a table.", field=path.rstrip("."))
        self._data, self._path, self._read = data, path, set[str]()
        self._known = set[str]()  # fields that the table may have

    def _get(self, key: str, default: Any = None) -> Any:
        self._read.add(key)
        self._known.add(key)
        if key in self._data:
            return self._data[key]
        if default is None:
            raise TargetError(f"{self._path}{key} is missing.", field=self._path + key)
        return default

    def _fail(self, key: str, must: str, value: Any) -> TargetError:
        return TargetError(f"{self._path}{key} must be {must}, not {shown(value)}.", field=self._path + key)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str) or (default is None and not value):
            raise self._fail(key, "a non-empty text", value)
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._fail(key, "true or false", value)
        return value

    def choice(self, key: str, values: tuple[str, ...]) -> Any:
        value = self._get(key)
        if value not in values:
            raise self._fail(key, "one of " + ", ".join(values), value)
        return value

    def choices(self, key: str, values: tuple[str, ...], default: list[str] | None = None) -> tuple[str, ...]:
        value = self._get(key, default)
        if not isinstance(value, list) or any(item not in values for item in value):
            raise self._fail(key, "a list of " + ", ".join(values), value)
        return tuple(value)

    def _number(self, key: str, default: float | None) -> float:
        value = self._get(key, default)
        number = math.nan
        if isinstance(value, int | float) and not isinstance(value, bool):
            with suppress(OverflowError):  # an integer larger than any float
                number = float(value)
        if not math.isfinite(number):
            raise self._fail(key, "a finite number", value)
        return number

    def positive(self, key: str, default: float | None = None) -> float:
        value = self._number(key, default)
        if value <= 0:
            raise self._fail(key, "above zero", value)
        return value

    def non_negative(self, key: str, default: float | None = None) -> float:
        value = self._number(key, default)
        if value < 0:
            raise self._fail(key, "zero or more", value)
        return value

    def count(self, key: str) -> int:
        value = self._get(key)
        if not _is_count(value):
            raise self._fail(key, "a whole number of 1 or more", value)
        return value

    def natural(self, key: str) -> int:
        value = self._get(key)
        if not _is_natural(value):
            raise self._fail(key, "a whole number of 0 or more", value)
        number: int = value
        return number

    def counts(self, key: str, length: int) -> tuple[int, ...]:
        value = self._get(key)
        is_list = isinstance(value, list) and len(value) == length
        if not is_list or any(
            isinstance(v, bool) or not isinstance(v, int) or not 1 <= v < 2**62 for v in value
        ):
            raise self._fail(key, f"a list of {length} whole numbers of 1 or more", value)
        return tuple(value)

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._get(key)
        texts = value if isinstance(value, list) else [value]
        if not texts or not all(isinstance(text, str) and text for text in texts):
            raise self._fail(key, "a non-empty text, or a list of such", value)
        return tuple(texts)

    def naturals(self, key: str) -> tuple[int, ...]:
        value = self._get(key)
        if not isinstance(value, list) or not value or not all(_is_natural(item) for item in value):
            raise self._fail(key, "a list of whole numbers of 0 or more", value)
        return tuple(value)

    def has(self, key: str) -> bool:
        self._known.add(key)
        return key in self._data

    def table(self, key: str) -> TomlTable:
        return TomlTable(self._get(key), f"{self._path}{key}.")

    def tables(self, key: str) -> list[TomlTable]:
        value = self._get(key)
        if not isinstance(value, list) or not value:
            raise self._fail(key, "a list of one or more tables", value)
        return [TomlTable(item, f"{self._path}{key}[{i}].") for i, item in enumerate(value)]

    def rates(self, key: str) -> dict[str, float]:
        table = self.table(key)
        rates = {}
        for name in table._data:
            dtype = name if name == "default" else DTYPES[dtype_code(name, field=f"{self._path}{key}")]
            rates[dtype] = table.positive(name)
        if not rates:
            raise self._fail(key, "a table with at least one rate", {})
        return rates

    def rates_by_name(self, key: str) -> dict[str, dict[str, float]]:
        table = self.table(key)
        return {name: table.rates(name) for name in table._data}

    def links(self, num_chips: int) -> tuple[tuple[int, int, float, float], ...]:
        links = []
        for table in self.tables("links"):
            ends = (table._get("source"), table._get("destination"))
            for key, chip in zip(("source", "destination"), ends, strict=True):
                if isinstance(chip, bool) or not isinstance(chip, int) or not 0 <= chip < num_chips:
                    raise table._fail(key, f"a chip from 0 to {num_chips - 1}", chip)
            if ends[0] == ends[1]:
                raise table._fail("destination", "another chip than the source", ends[1])
            links.append((*ends, table.positive("rate_bytes_per_s"), table.non_negative("latency_s")))
            table.finish()
        return tuple(links)

    def finish(self) -> None:
        """Raise if nothing has read a field: a misspelt one must not be ignored."""
        for key in self._data:
            if key not in self._read:
                hint = suggestion(key, sorted(self._known))
                raise TargetError(f"unknown field {self._path}{key}{hint}", field=self._path + key)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**62


def _is_natural(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62
