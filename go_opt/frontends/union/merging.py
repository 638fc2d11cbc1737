"""Several ONNX models as one, with the names that their union has as a graph."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import version_converter

from go_opt.errors import ModelError
from go_opt.frontends.onnx.inference.file import read_model
from go_opt.frontends.onnx.structure import inlined, name_nodes, subgraphs
from go_opt.frontends.union.graphs import SHARED, UNION_PREFIX, prefix_of, shares_of

_STANDARD = ("", "ai.onnx")


def merged_model(name: str) -> onnx.ModelProto:
    """All models of a union's name in one, each as often as its share; copies share their initializers.

    Models of older versions of ONNX's ops are converted to the newest among them.

    Raises:
      ModelError: a model cannot be read or converted, lacks weights or has sparse ones; or two need other
        versions of a domain's ops.
    """
    if name.startswith(UNION_PREFIX + SHARED):
        raise ModelError("a prompt and a step that share weights can be planned, not run.", field="model")
    shares = shares_of(name)
    models = {path: _read(path) for _, path in shares}
    versions = {path: _versions(model) for path, model in models.items()}
    newest = max(found.get("", 1) for found in versions.values())
    merged = onnx.ModelProto(ir_version=max(model.ir_version for model in models.values()))
    merged.graph.name = "union"
    domains = {"": newest}
    for number, (copies, path) in enumerate(shares, 1):
        for domain, version in versions[path].items():
            if domain and domains.setdefault(domain, version) != version:
                raise ModelError(
                    f"model {path[:100]!r} has version {version} of the ops {domain!r}, another model "
                    f"{domains[domain]}.",
                    field="model",
                )
        model = models[path]
        if versions[path].get("", newest) != newest:
            model = _converted(model, path, newest)
        for copy in range(copies):
            _add(merged.graph, model.graph, prefix_of(number, copy), prefix_of(number, 0))
    merged.opset_import.extend(onnx.helper.make_opsetid(*one) for one in domains.items())
    return merged


def _read(path: str) -> onnx.ModelProto:
    """A model with its weights in memory and a name for each node."""
    file = read_model(path)
    file.check_weights()
    if file.model.graph.sparse_initializer:
        raise ModelError(f"model {path[:100]!r} has sparse initializers.", field="model")
    model = inlined(file.model)
    if file.folder is not None:
        onnx.load_external_data_for_model(model, str(file.folder))
    name_nodes(model)
    return model


def _versions(model: onnx.ModelProto) -> dict[str, int]:
    """By domain."""
    return {"" if one.domain in _STANDARD else one.domain: one.version for one in model.opset_import}


def _converted(model: onnx.ModelProto, path: str, version: int) -> onnx.ModelProto:
    try:
        converted = version_converter.convert_version(model, version)
    except Exception as error:  # the extension raises types of its own, derived from Exception alone
        reason = "".join(str(error).strip().splitlines()[:1]).rstrip(".")[:200]
        raise ModelError(
            f"model {path[:100]!r} cannot be converted to version {version} of ONNX's ops: {reason}.",
            field="model",
        ) from None
    name_nodes(converted)
    return converted


def _add(graph: onnx.GraphProto, own: onnx.GraphProto, prefix: str, shared: str) -> None:
    """Add the nodes of a model, and with ``prefix == shared`` its initializers, under prefixed names."""
    weights = {one.name for one in own.initializer}
    values = [one.name for one in (*own.input, *own.output, *own.value_info)]
    values += [output for node in own.node for output in node.output if output]
    names = {name: prefix + name for name in values} | {name: shared + name for name in weights}
    is_first = prefix == shared
    for node in own.node:
        added = graph.node.add()
        added.CopyFrom(node)
        added.name = prefix + node.name
        _rename(added, names)
        added.output[:] = [names.get(output, output) for output in node.output]
    for field in ("input", "output", "value_info"):
        for info in getattr(own, field):
            if is_first or info.name not in weights:
                added_info = getattr(graph, field).add()
                added_info.CopyFrom(info)
                added_info.name = names[info.name]
    if is_first:
        for tensor in own.initializer:
            graph.initializer.add().CopyFrom(tensor)
            graph.initializer[-1].name = names[tensor.name]


def _rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Rename what a node reads, also what its bodies read of the graphs around them."""
    node.input[:] = [names.get(read, read) for read in node.input]
    for body in subgraphs(node):
        own = {one.name for one in (*body.input, *body.initializer)}
        own |= {output for inner in body.node for output in inner.output}
        outer = {name: new for name, new in names.items() if name not in own}
        for inner in body.node:
            _rename(inner, outer)
        for output in body.output:
            output.name = outer.get(output.name, output.name)
