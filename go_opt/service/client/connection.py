"""A connection to a service: calls with a deadline, retries, a request id and go-opt's errors."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Generator
from typing import Any, Final

import grpc

from go_opt.errors import InvalidInputError, ServiceError
from go_opt.service.messages.errors import error_from_call
from go_opt.service.transport.address import Address, parse_address
from go_opt.service.transport.credentials import REQUEST_ID_KEY, Credentials, channel, request_id
from go_opt.service.transport.retry import Failure, Retry, with_retries

CONNECT_TIMEOUT_S: Final = 4.0
_PROBE_TIMEOUT_S: Final = 0.2
_PLACE: Final = re.compile(r"(.*last error: )?([A-Z_]+: )?(ipv4|ipv6):\S+ ")


class Connection:
    """Calls to one service, from any number of threads; it is there once this is made.

    Args:
      address: ``HOST:PORT``.
      timeout_s: the deadline of each call, retries included; None is what each call says.

    Raises:
      InvalidInputError: an argument is malformed.
      ServiceError: nothing answers at the address within 4 s.
    """

    def __init__(
        self,
        address: str,
        *,
        credentials: Credentials | None = None,
        retry: Retry | None = None,
        timeout_s: float | None = None,
    ) -> None:
        if timeout_s is not None and not timeout_s > 0:
            raise InvalidInputError(f"timeout_s must be above zero, not {timeout_s}.", field="timeout_s")
        self.address: Address = parse_address(address)
        self._credentials = credentials or Credentials()
        self.channel = channel(self.address, self._credentials)
        self._retry = retry or Retry()
        self._timeout_s = timeout_s
        self._closed = threading.Event()
        self._connect(CONNECT_TIMEOUT_S if timeout_s is None else min(timeout_s, CONNECT_TIMEOUT_S))

    def call(
        self, method: Callable[..., Any], message: Any, *, timeout_s: float | None, name: str | None = None
    ) -> Any:
        """The answer to a message.

        Args:
          method: of a stub on :attr:`channel`.
          timeout_s: where the connection has none of its own; None waits on.
          name: the request id, by which logs know the call; one is made by default.

        Raises:
          GoOptError: what the service raised; its notes name the request.
        """
        headers = self._headers(name)

        def attempt(left_s: float | None) -> Any:
            try:
                return method(message, timeout=left_s, metadata=headers)
            except grpc.RpcError as error:
                raise self._failure(error, headers) from None

        return self._retried(attempt, timeout_s)

    def stream(
        self, method: Callable[..., Any], message: Any, *, timeout_s: float | None, name: str | None = None
    ) -> Generator[Any, None, None]:
        """The answers to a message, as :meth:`call`; to close the generator cancels the call.

        Asked again only before the first answer.
        """
        headers = self._headers(name)

        def attempt(left_s: float | None) -> tuple[Any, Any]:
            answers = method(message, timeout=left_s, metadata=headers)
            try:
                return answers, next(answers)
            except StopIteration:
                raise Failure(grpc.StatusCode.OK, self._no_answer()) from None
            except grpc.RpcError as error:
                raise self._failure(error, headers) from None
            except BaseException:  # Ctrl-C while nothing has come yet
                answers.cancel()
                raise

        answers, first = self._retried(attempt, timeout_s)
        try:
            yield first
            yield from answers
        except grpc.RpcError as error:
            raise self._failure(error, headers).error from None
        finally:
            answers.cancel()

    def close(self) -> None:
        """Close the connection; calls under way end with a ServiceError that says so."""
        self._closed.set()
        self.channel.close()

    def _retried(self, attempt: Callable[[float | None], Any], timeout_s: float | None) -> Any:
        limit_s = timeout_s if self._timeout_s is None else self._timeout_s
        if self._closed.is_set():
            raise self._is_closed()
        try:
            return with_retries(attempt, self._retry, limit_s, sleep=self._closed.wait)
        except ValueError:
            if not self._closed.is_set():
                raise
            raise self._is_closed() from None

    def _is_closed(self) -> ServiceError:
        return ServiceError(f"the connection to {self.address} is closed.")

    def _failure(self, error: grpc.RpcError, headers: tuple[tuple[str, str], ...]) -> Failure:
        is_closed = self._closed.is_set()  # which cancels the call
        raised = self._is_closed() if is_closed else error_from_call(error, str(self.address))
        raised.add_note(f"request {headers[0][1]}")
        return Failure(grpc.StatusCode.CANCELLED if is_closed else error.code(), raised)

    def _no_answer(self) -> ServiceError:
        return ServiceError(f"the service at {self.address} ended the stream without an answer.")

    def _connect(self, timeout_s: float) -> None:
        ready = grpc.channel_ready_future(self.channel)
        try:
            ready.result(timeout=timeout_s)
        except grpc.FutureTimeoutError:
            ready.cancel()
            reason = self._why_not_ready()
            self.close()
            raise ServiceError(
                f"no go-opt service answers at {self.address} (waited {timeout_s:g} s){reason}."
            ) from None
        except BaseException:  # Ctrl-C
            ready.cancel()
            self.close()
            raise

    def _why_not_ready(self) -> str:
        """Only a call that fails says why, such as a certificate that is not trusted."""
        try:
            self.channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=_PROBE_TIMEOUT_S)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                text = _PLACE.sub("", " ".join(str(error.details()).split())).rstrip(".")
                return f": {text}"
        return ""

    def _headers(self, name: str | None) -> tuple[tuple[str, str], ...]:
        sent = request_id(name)
        if name is not None and sent != name:
            raise InvalidInputError(
                f"request_id must be 1 to 128 letters, digits and . _ : / + = -, not {name[:130]!r}.",
                field="request_id",
            )
        return ((REQUEST_ID_KEY, sent), *self._credentials.metadata)
