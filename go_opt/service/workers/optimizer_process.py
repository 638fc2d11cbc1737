"""A process that answers the requests of a service, one at a time.

``python -m go_opt.service.workers.optimizer_process``, started by
:mod:`go_opt.service.workers.process_optimizer` with a socket as stdin. It exits when the socket
closes, so it ends with the service in every case.
"""

from __future__ import annotations

import gc
import os
import queue
import threading
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, cast

from google.protobuf.message import Message

from go_opt.common.processes import give_back
from go_opt.errors import GoOptError
from go_opt.proto import optimizer_pb2
from go_opt.search.compiling.warm_up import warm_up
from go_opt.service.calls.calls import Stop
from go_opt.service.messages.errors import status_from_error
from go_opt.service.workers.optimizer import LocalOptimizer, PlanQuery, Policy, SearchControl
from go_opt.service.workers.process_optimizer import Frame, receive, send

# A worker retires after this: compiled code and caches free their memory only at exit.
_MOST_CALLS: Final = 1000
_MOST_BYTES: Final = 1 << 30


class _Worker:
    def __init__(self, connection: Connection) -> None:
        self._connection, self._optimizer = connection, LocalOptimizer()
        self._calls: queue.SimpleQueue[tuple[Frame, Stop]] = queue.SimpleQueue()
        # A separate thread reads, so that a running search can be stopped.
        threading.Thread(target=self._read, daemon=True).start()

    def run(self) -> None:
        send(self._connection, "ready")
        for number in range(1, _MOST_CALLS + 1):
            request, stop = self._calls.get()
            kind, body, is_whole = self._outcome(request, stop)
            retires = number == _MOST_CALLS or _resident_bytes() > _MOST_BYTES
            send(self._connection, kind, body, is_whole=is_whole, retires=retires)
            del request, body
            give_back()

    def _read(self) -> None:
        last, stop = None, Stop()
        while True:
            try:
                frame = receive(self._connection)
            except (EOFError, OSError):
                os._exit(0)  # even during a search, because nobody waits for it
            if frame.kind != "stop":
                last, stop = frame["call"], Stop()
                self._calls.put((frame, stop))
            elif frame["call"] == last:
                stop.set()
            del frame

    def _outcome(self, request: Frame, stop: Stop) -> tuple[str, bytes, bool]:
        try:
            message, is_whole = self._answer(request, stop)
            return "answer", message.SerializeToString(), is_whole
        except GoOptError as error:
            return "refused", status_from_error(error).SerializeToString(), True
        except Exception:
            return "failed", traceback.format_exc().encode("utf-8", "replace"), True

    def _answer(self, request: Frame, stop: Stop) -> tuple[Message, bool]:
        if request.kind != "optimize":
            return self._optimizer.inspect(cast(PlanQuery, request.kind), request.body, stop=stop), True
        improve = self._improve if request["improvements"] else None
        remember = None if request["remember"] is None else Path(request["remember"])
        control = SearchControl(_policy(request["policy"]), stop, request["deadline_s"], improve, remember)
        return self._optimizer.optimize(request.body, control)

    def _improve(self, response: optimizer_pb2.OptimizeResponse) -> None:
        send(self._connection, "improvement", response.SerializeToString())


def _resident_bytes() -> int:
    """Resident memory of this process; 0 if the system does not report it."""
    with suppress(OSError), open("/proc/self/statm", "rb") as numbers:
        return int(numbers.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _policy(text: str | None) -> Policy:
    match text:
        case None | "default" | "only":
            return text
    return Path(text)


def main() -> None:
    worker = _Worker(Connection(os.dup(0)))
    warm_up()
    gc.freeze()  # loaded modules are never garbage; collecting over them would slow every large graph
    worker.run()


if __name__ == "__main__":
    main()
