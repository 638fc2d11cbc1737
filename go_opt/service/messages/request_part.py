"""The field at fault, by its path in the request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from google.protobuf.message import Message

from go_opt.errors import InvalidInputError


@contextmanager
def request_part(path: str, kind: type[Message] | None = None) -> Iterator[None]:
    """Whatever is wrong in here is wrong with the field at ``path``, or with a field in it.

    Readers of graphs, plans and targets name what is at fault in their own words: an op, a
    key of a file. What of it is no field of a message stays in the sentence alone.

    Args:
      kind: of the message at the path, where readers name fields of it.
    """
    try:
        yield
    except InvalidInputError as error:
        name = error.field.partition(".")[0].partition("[")[0]
        is_field = kind is not None and name in kind.DESCRIPTOR.fields_by_name
        error.field = f"{path}.{error.field}" if is_field else path
        raise
