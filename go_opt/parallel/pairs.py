"""Texts of pairs, ``tensor=8,recompute=full``, read into the fields of a dataclass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

from go_opt.common.suggestion import suggestion
from go_opt.errors import InvalidInputError

_T = TypeVar("_T")
MAX_COUNT: Final = 10**9
_SWITCH: Final = {"on": True, "off": False}


def read_pairs(text: str, made: type[_T], what: str) -> _T:
    """The dataclass of a text of ``name=value`` pairs, joined by commas.

    Fields are whole numbers of one or more, seconds (``float``), switches (``on``, ``off``) or one of some
    words; those without a default must be given.

    Raises:
      InvalidInputError: a name is unknown, given twice or missing, or a value is malformed.
    """
    known = {field.name: field for field in fields(made)}  # type: ignore[arg-type]
    kinds, given = get_type_hints(made), dict[str, Any]()
    for pair in text.split(",") if text else ():
        name, equals, value = pair.strip().partition("=")
        if name not in known or not equals:
            raise InvalidInputError(
                f"{what}: {pair.strip()[:60]!r} must be one of {', '.join(known)} with =VALUE"
                f"{suggestion(name, sorted(known)) or '.'}",
                field=name[:60] or what,
            )
        if name in given:
            raise InvalidInputError(f"{what}: {name} is given twice.", field=name)
        given[name] = _read(value, kinds[name], name, what)
    for name, field in known.items():
        if name not in given and field.default is MISSING:
            raise InvalidInputError(f"{what}: {name} is missing.", field=name)
    return made(**given)


def pairs_text(values: Mapping[str, Any]) -> str:
    """The text that :func:`read_pairs` reads as these values; what is None is left out."""
    words = {value: word for word, value in _SWITCH.items()}
    return ",".join(
        f"{name}={words[value] if isinstance(value, bool) else value}"
        for name, value in values.items()
        if value is not None
    )


def _read(value: str, kind: Any, name: str, what: str) -> Any:
    if get_origin(kind) is Literal:
        return _one_of(value, get_args(kind), name, what)
    if kind is bool:
        return _SWITCH[_one_of(value, tuple(_SWITCH), name, what)]
    if kind == float | None:
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0.0 <= number <= MAX_COUNT:
            raise InvalidInputError(
                f"{what}: {name} must be seconds of zero or more, not {value[:60]!r}.", field=name
            )
        return number
    if not (value.isascii() and value.isdigit() and len(value) < 11 and int(value) <= MAX_COUNT):
        raise InvalidInputError(f"{what}: {name} must be a whole number, not {value[:60]!r}.", field=name)
    return int(value)


def _one_of(value: str, words: Sequence[Any], name: str, what: str) -> Any:
    texts = {str(word): word for word in words}
    if value not in texts:
        raise InvalidInputError(
            f"{what}: {name} must be one of {', '.join(texts)}, not {value[:60]!r}.", field=name
        )
    return texts[value]
