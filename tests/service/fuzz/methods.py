"""Every method of the service, by the descriptors of its services."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from google.longrunning import operations_pb2
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from go_opt.proto import environment_pb2, optimizer_pb2, training_pb2

_MODULES: Final = (optimizer_pb2, environment_pb2, training_pb2, operations_pb2, health_pb2, reflection_pb2)


@dataclass(frozen=True)
class Method:
    """One method, as a client sees it."""

    path: str
    request: type[Message]
    takes_stream: bool

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def is_search(self) -> bool:
        """Whether the deadline of the call may well come first."""
        return "Optimizer" in self.path

    @property
    def is_watch(self) -> bool:
        """Whether it answers until the caller leaves."""
        return self.path.endswith("Health/Watch")


def _methods() -> Iterator[Method]:
    pool = descriptor_pool.Default()
    for file in (pool.FindFileByName(module.DESCRIPTOR.name) for module in _MODULES):
        for service in file.services_by_name.values():
            for method in service.methods:
                request = message_factory.GetMessageClass(method.input_type)
                yield Method(f"/{service.full_name}/{method.name}", request, method.client_streaming)


METHODS: Final[Mapping[str, Method]] = {method.path.removeprefix("/"): method for method in _methods()}
