"""A node of an exported program, parsed from JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from go_opt.errors import ModelError

_DTYPES: Final[Mapping[int, str]] = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64",
    9: "complex64", 10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16", 28: "uint16",
    29: "float8_e4m3", 30: "float8_e5m2", 31: "float8_e4m3", 32: "float8_e5m2", 34: "uint32", 35: "uint64",
}  # fmt: skip
_PLAIN: Final = (
    "as_int", "as_ints", "as_float", "as_floats", "as_bool", "as_bools", "as_string", "as_strings",
)  # fmt: skip
_CALL: Final = re.compile(r"@\d+$")  # the second call of a module is `layers.0@1`


@dataclass(frozen=True)
class Node:
    """An operator with its inputs and outputs."""

    target: str
    module: str  # path of the module that calls it; empty for the model itself
    tensors: tuple[tuple[str, str], ...]  # (argument, tensor) of each tensor read
    attributes: Mapping[str, Any]  # plain arguments by name; sizes that are not numbers are left out
    graphs: tuple[Mapping[str, Any], ...]  # programs among the arguments
    outputs: tuple[str, ...]  # tensors


def parsed(node: Mapping[str, Any]) -> Node:
    """The node that a JSON object describes."""
    tensors = [(entry["name"], name) for entry in node["inputs"] for name in tensor_names([entry["arg"]])]
    attributes = {
        entry["name"]: entry["arg"][kind]
        for entry in node["inputs"]
        for kind in _PLAIN
        if kind in entry["arg"]
    }
    graphs = [entry["arg"]["as_graph"]["graph"] for entry in node["inputs"] if "as_graph" in entry["arg"]]
    return Node(
        node["target"],
        _module(node["metadata"].get("nn_module_stack", "")),
        tuple(tensors),
        attributes,
        tuple(graphs),
        tuple(tensor_names(node["outputs"])),
    )


def tensor_names(arguments: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Names of the tensors among arguments, in their order."""
    for argument in arguments:
        if "as_tensor" in argument:
            yield argument["as_tensor"]["name"]
        elif "as_optional_tensor" in argument:
            yield from tensor_names([argument["as_optional_tensor"]])
        for tensor in argument.get("as_tensors", ()):
            yield tensor["name"]
        for rows in argument.get("as_nested_tensors", ()):
            yield from (tensor["name"] for tensor in rows)
        yield from tensor_names(argument.get("as_optional_tensors", ()))


def dtype_of(meta: Mapping[str, Any], tensor: str) -> str:
    """The type of a tensor.

    Raises:
      ModelError: go-opt does not have the type.
    """
    if meta["dtype"] not in _DTYPES:
        raise ModelError(
            f"tensor {tensor!r} has torch's scalar type {meta['dtype']}, which has no name here."
        )
    return _DTYPES[meta["dtype"]]


def root_class(program: Mapping[str, Any]) -> str:
    """The class of the model; empty if no node names it."""
    stacks = (
        node["metadata"].get("nn_module_stack", "") for node in program["graph_module"]["graph"]["nodes"]
    )
    first = next((stack for stack in stacks if stack), "")
    return first.split(";")[0].rpartition(",")[2].rpartition(".")[2]


def _module(stack: str) -> str:
    # Rows of key, path and class; the innermost module is last.
    row = stack.rpartition(";")[2].split(",")
    return _CALL.sub("", row[1]) if len(row) > 2 else ""
