"""What was published of the protos stays: no field, value or call is removed, renumbered or retyped.

``published.binpb`` is what callers have generated code from. A compatible change is published
with ``python .ci/protos.py publish``, which has buf judge it first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

from go_opt.proto import environment_pb2, graph_pb2, optimizer_pb2, plan_pb2, step_pb2, training_pb2

MODULES = (graph_pb2, plan_pb2, step_pb2, optimizer_pb2, environment_pb2, training_pb2)
Fact = tuple[object, ...]


def published() -> list[FileDescriptorProto]:
    files = FileDescriptorSet.FromString((Path(__file__).parent / "published.binpb").read_bytes()).file
    return [file for file in files if file.package == "go_opt.v1"]


def current() -> list[FileDescriptorProto]:
    return [FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb) for module in MODULES]


def facts(files: list[FileDescriptorProto]) -> set[Fact]:
    """All that a caller relies on, one tuple each."""
    found: set[Fact] = set()
    for file in files:
        found |= {fact for message in file.message_type for fact in _of_message(message, file.package)}
        found |= {fact for enum in file.enum_type for fact in _of_enum(enum, file.package)}
        for service in file.service:
            for call in service.method:
                streams = (call.client_streaming, call.server_streaming)
                found.add(("rpc", service.name, call.name, call.input_type, call.output_type, *streams))
    return found


def _of_message(message: DescriptorProto, scope: str) -> Iterator[Fact]:
    name = f"{scope}.{message.name}"
    for field in message.field:
        oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
        kind = FieldDescriptorProto.Type.Name(field.type)
        yield "field", name, field.number, field.name, kind, field.type_name, field.label, oneof
    for reserved in message.reserved_range:
        yield "reserved", name, reserved.start, reserved.end
    for nested in message.nested_type:
        yield from _of_message(nested, name)
    for enum in message.enum_type:
        yield from _of_enum(enum, name)


def _of_enum(enum: EnumDescriptorProto, scope: str) -> Iterator[Fact]:
    return (("value", f"{scope}.{enum.name}", value.number, value.name) for value in enum.value)


def test_nothing_published_is_gone_or_changed() -> None:
    assert facts(published()) - facts(current()) == set()


def test_everything_is_published() -> None:
    missing = facts(current()) - facts(published())
    assert missing == set(), "run: python .ci/protos.py publish"


def _graph_message(files: list[FileDescriptorProto], name: str) -> DescriptorProto:
    (message,) = (m for file in files for m in file.message_type if m.name == name)
    return message


def _remove_field(files: list[FileDescriptorProto]) -> None:
    del _graph_message(files, "Op").field[3]


def _renumber_field(files: list[FileDescriptorProto]) -> None:
    _graph_message(files, "Op").field[3].number = 100


def _rename_field(files: list[FileDescriptorProto]) -> None:
    _graph_message(files, "Op").field[3].name = "operations"


def _retype_field(files: list[FileDescriptorProto]) -> None:
    _graph_message(files, "Op").field[3].type = FieldDescriptorProto.TYPE_FLOAT


def _repeat_field(files: list[FileDescriptorProto]) -> None:
    _graph_message(files, "Op").field[3].label = FieldDescriptorProto.LABEL_REPEATED


def _retype_map(files: list[FileDescriptorProto]) -> None:
    _graph_message(files, "Graph").nested_type[0].field[1].type = FieldDescriptorProto.TYPE_INT32


def _free_number(files: list[FileDescriptorProto]) -> None:
    del _graph_message(files, "OptimizeRequest").reserved_range[:]


def _renumber_value(files: list[FileDescriptorProto]) -> None:
    files[0].enum_type[0].value[1].number = 9


def _remove_call(files: list[FileDescriptorProto]) -> None:
    del next(file for file in files if file.service).service[0].method[0]


def _make_call_a_stream(files: list[FileDescriptorProto]) -> None:
    next(file for file in files if file.service).service[0].method[0].client_streaming = True


@pytest.mark.parametrize(
    "change",
    [
        _remove_field,
        _renumber_field,
        _rename_field,
        _retype_field,
        _repeat_field,
        _retype_map,
        _free_number,
        _renumber_value,
        _remove_call,
        _make_call_a_stream,
    ],
)
def test_a_breaking_change_is_noticed(change: Callable[[list[FileDescriptorProto]], None]) -> None:
    files = current()
    change(files)
    assert facts(published()) - facts(files)
