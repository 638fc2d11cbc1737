"""What a service and its worker processes say to each other: a header, then bytes.

Headers are JSON and bodies protobuf messages; nothing is pickled.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any


@dataclass(frozen=True)
class Frame:
    """One of these, in the order of a call:

    ``ready``       worker: it has loaded everything, requests may come
    ``optimize``    service: a request; ``call`` numbers it, ``policy``, ``deadline_s``, ``improvements``
    ``evaluate``    service: a request; ``call`` numbers it; likewise ``verify``, ``explain``
    ``look_up``     worker: whether an answer is known under ``key``
    ``known``       service: the answer, or an empty body
    ``improvement`` worker: the best answer so far
    ``stop``        service: end the call of this number
    ``answer``      worker: the answer, to be kept under ``key``
    ``refused``     worker: the call's status
    ``failed``      worker: a defect, as a traceback

    The last three end the call; ``retires`` is true where the worker takes no other.
    """

    kind: str
    body: bytes = b""
    values: dict[str, Any] | None = None

    def __getitem__(self, name: str) -> Any:
        return (self.values or {}).get(name)


def send(connection: Connection, kind: str, body: bytes = b"", **values: Any) -> None:
    """Send a frame, all of it."""
    connection.send_bytes(json.dumps({"kind": kind, **values}).encode())
    connection.send_bytes(body)


def receive(connection: Connection) -> Frame:
    """The next frame.

    Raises:
      EOFError, OSError: the other side has ended.
    """
    values = json.loads(connection.recv_bytes())
    return Frame(values.pop("kind"), connection.recv_bytes(), values)
