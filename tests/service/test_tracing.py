"""Spans of calls."""

from __future__ import annotations

import sys
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import BytesValue

from go_opt.errors import InvalidInputError
from go_opt.service.observability import Tracer, tracing_to
from tests.serving import serve_in_thread

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_a_span_for_each_call_below_that_of_the_caller(toy: Any) -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.trace import SpanKind, StatusCode

    exporter = InMemorySpanExporter()
    tracer = Tracer(SimpleSpanProcessor(exporter))
    metadata = (("traceparent", f"00-{TRACE_ID}-{SPAN_ID}-01"), ("x-request-id", "my-call"))
    with serve_in_thread([toy], observers=[tracer]) as address, grpc.insecure_channel(address) as channel:
        quick = channel.unary_unary("/toy.Toy/Quick")
        for value, given in ((b"x", metadata), (b"defect", ()), (b"bad", (("traceparent", "nonsense"),))):
            quick.future(BytesValue(value=value).SerializeToString(), timeout=10, metadata=given).code()
    good, defect, bad = exporter.get_finished_spans()
    tracer.close()
    assert good.name == "toy.Toy/Quick"
    assert good.kind is SpanKind.SERVER
    assert good.parent is not None
    assert (f"{good.parent.trace_id:032x}", f"{good.parent.span_id:016x}") == (TRACE_ID, SPAN_ID)
    assert good.attributes is not None
    assert good.attributes["rpc.service"] == "toy.Toy"
    assert good.attributes["rpc.method"] == "Quick"
    assert good.attributes["rpc.grpc.status_code"] == 0
    assert good.attributes["go_opt.request_id"] == "my-call"
    assert defect.status.status_code is StatusCode.ERROR
    assert bad.status.status_code is StatusCode.UNSET
    assert bad.parent is None


def test_without_the_extra_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with (
        pytest.raises(InvalidInputError, match=r"pip install 'go-opt\[otel\]'") as error,
        tracing_to("http://127.0.0.1:4317"),
    ):
        pass
    assert error.value.field == "otlp_endpoint"


@pytest.mark.parametrize("endpoint", ["", "127.0.0.1:4317", "ftp://a:1", "http://", "http://a b"])
def test_an_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(InvalidInputError, match="--otlp-endpoint must be http://"), tracing_to(endpoint):
        pass
