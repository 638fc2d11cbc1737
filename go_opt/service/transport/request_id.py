"""Names of calls, to find one call in the logs of all who took part in it."""

from __future__ import annotations

import re
import secrets
from typing import Final

REQUEST_ID_KEY: Final = "x-request-id"
_SANE: Final = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


def request_id(given: str | bytes | None) -> str:
    """The caller's name of the call where it can stand in a log, else a new one."""
    if isinstance(given, str) and _SANE.fullmatch(given):
        return given
    return secrets.token_hex(16)
