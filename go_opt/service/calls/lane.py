"""The threads and the queue for calls of one kind."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from google.protobuf.message import Message

from go_opt.errors import GoOptError
from go_opt.service.calls.admission import Admission, AdmissionLimits
from go_opt.service.calls.call import Call, Outcome

Work = Callable[[bytes, Call], Message]
_log = logging.getLogger(__name__)


class DefectError(Exception):
    """A call hit a defect, which is in the log."""


class Lane:
    """Runs calls in its own threads, in the order of :class:`Admission`."""

    def __init__(self, name: str, threads: int, limits: AdmissionLimits | None) -> None:
        self.name = name
        self.admission = Admission(threads, limits)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"go-opt-{name}")

    async def run(
        self, call: Call, outcome: Outcome, read: Callable[[], Awaitable[bytes]], work: Work
    ) -> bytes:
        """Read a request once the queue has a place, wait for a slot, and work in a thread.

        The slot becomes free when the thread is done, even if nobody waits for the answer.
        """
        loop = asyncio.get_running_loop()
        ticket = self.admission.ticket(call.client)
        try:
            data = await read()
            since_s = time.monotonic()
            await ticket.granted(len(data))
            outcome.waited_s += time.monotonic() - since_s
            future = self._pool.submit(_bytes_of, work, data, call)
        except BaseException:
            ticket.release()
            raise

        def release(_: Future[bytes]) -> None:
            with suppress(RuntimeError):  # the loop has ended, and with it all waiting calls
                loop.call_soon_threadsafe(ticket.release)

        future.add_done_callback(release)
        try:
            return await asyncio.wrap_future(future)
        finally:
            # Its error would keep this frame and the request alive until garbage collection.
            del future

    def close(self) -> None:
        """Drop calls that have not started; running threads cannot be stopped."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _bytes_of(work: Work, data: bytes, call: Call) -> bytes:
    try:
        answer: bytes = work(data, call).SerializeToString()
    except GoOptError:
        raise
    except Exception:
        # Logged here, because the caller may have left.
        _log.exception("call %s of %s failed.", call.request_id, call.method)
        raise DefectError from None
    return answer


class Updates:
    """An asynchronous iterator over the newest update; a slow reader misses older updates.

    Args:
      loop: the reader's event loop; :meth:`emit` may be called from any thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending: bytes | None = None
        self._changed = asyncio.Event()
        self._is_finished = False

    def emit(self, message: Message) -> None:
        """Send the message, unless another follows before the reader takes it."""
        with suppress(RuntimeError):  # the loop has ended, and with it the reader
            self._loop.call_soon_threadsafe(self._set, message.SerializeToString())

    def finish(self) -> None:
        """End the iteration; called from the loop."""
        self._is_finished = True
        self._changed.set()

    def _set(self, data: bytes) -> None:
        self._pending = data
        self._changed.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._pending is not None or not self._is_finished:
            data, self._pending = self._pending, None
            if data is not None:
                yield data
            elif not self._is_finished:
                self._changed.clear()
                await self._changed.wait()
