"""Numbers that a caller gives to what a model leaves open, the options that give them, and refusals."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar

from go_opt.errors import GoOptError, ModelError
from go_opt.model.graph import MAX_ELEMENTS


class Trips:
    """The trips of the loops whose number of trips the model does not say."""

    MOST: ClassVar[int] = 2**31  # exporters write "while" as a Loop of about 2**63 trips

    def __init__(self, bindings: Mapping[str, int]) -> None:
        self._bindings = bindings
        self._unused = dict.fromkeys(bindings)
        for name, trips in bindings.items():
            if isinstance(trips, bool) or not isinstance(trips, int) or not 0 <= trips < self.MOST:
                raise ModelError(
                    f"loop {name!r} runs 0 to {self.MOST - 1} times, not {trips!r}.", field="trips"
                )

    def of(self, name: str, op_type: str) -> int:
        """The trips given for the loop that is the op ``name``.

        Raises:
          ModelError: none are given.
        """
        if name not in self._bindings:
            raise ModelError(
                f"op {name!r} ({op_type}) has no constant trip count: "
                f"use `--trips {shlex.quote(name)}=TRIPS`."
            )
        self._unused.pop(name, None)
        return self._bindings[name]

    def check(self) -> None:
        """Reject bindings of loops that the model does not have, once all of it is read."""
        for name in self._unused:
            raise ModelError(f"the model has no loop {name!r} whose trips can be bound.", field="trips")


def check_dims(bindings: Mapping[str, int]) -> None:
    """Reject sizes of dimensions that are no numbers of elements."""
    for name, size in bindings.items():
        if isinstance(size, bool) or not isinstance(size, int) or not 0 < size <= MAX_ELEMENTS:
            raise ModelError(f"dimension {name!r} must be a positive integer, not {size!r}.", field="dims")


def flags(names: Iterable[str]) -> str:
    """The options of the command line that bind the dimensions."""
    return " ".join(f"--dim {shlex.quote(name)}=VALUE" for name in names)


@contextmanager
def refused_as(what: str) -> Iterator[None]:
    """Damaged models fail in more ways than their libraries name: each is bad input, as ``what`` says."""
    try:
        yield
    except GoOptError:
        raise
    except Exception as error:
        reason = "".join(str(error).strip().splitlines()[:1]).rstrip(".")
        raise ModelError(f"{what} ({type(error).__name__}: {reason}).") from error
