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
from typing import Final, cast

from go_opt.common.processes import give_back
from go_opt.errors import GoOptError
from go_opt.proto import optimizer_pb2
from go_opt.search.compiling.warm_up import warm_up
from go_opt.service.calls.calls import Stop
from go_opt.service.workers.optimizer import LocalOptimizer, PlanQuery, SearchControl
from go_opt.service.workers.process_optimizer import Frame

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
        self._connection.send(Frame("ready"))
        for number in range(1, _MOST_CALLS + 1):
            request, stop = self._calls.get()
            answer = self._answer(request, stop)
            retires = number == _MOST_CALLS or _resident_bytes() > _MOST_BYTES
            self._connection.send(answer._replace(retires=retires))
            del request, answer
            give_back()

    def _read(self) -> None:
        last, stop = None, Stop()
        while True:
            try:
                frame: Frame = self._connection.recv()
            except (EOFError, OSError):
                os._exit(0)  # even during a search, because nobody waits for it
            if frame.kind != "stop":
                last, stop = frame.call, Stop()
                self._calls.put((frame, stop))
            elif frame.call == last:
                stop.set()
            del frame

    def _answer(self, request: Frame, stop: Stop) -> Frame:
        try:
            if request.kind != "optimize":
                message = self._optimizer.inspect(cast(PlanQuery, request.kind), request.body, stop=stop)
                return Frame("answer", message.SerializeToString())
            improve = self._improve if request.improvements else None
            control = SearchControl(**(request.control or {}), stop=stop, on_improvement=improve)
            answer = self._optimizer.optimize(request.body, control)
            return Frame("answer", answer.response.SerializeToString(), is_whole=answer.is_whole)
        except GoOptError as error:
            return Frame("refused", error)
        except Exception:
            return Frame("failed", traceback.format_exc())

    def _improve(self, response: optimizer_pb2.OptimizeResponse) -> None:
        self._connection.send(Frame("improvement", response.SerializeToString()))


def _resident_bytes() -> int:
    """Resident memory of this process; 0 if the system does not report it."""
    with suppress(OSError), open("/proc/self/statm", "rb") as numbers:
        return int(numbers.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def main() -> None:
    worker = _Worker(Connection(os.dup(0)))
    warm_up()
    gc.freeze()  # loaded modules are never garbage; collecting over them would slow every large graph
    worker.run()


if __name__ == "__main__":
    main()
