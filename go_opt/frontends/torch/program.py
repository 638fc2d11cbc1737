"""An exported program: its file, signature and nodes, and its sizes, which the user may bind."""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final, NamedTuple

from go_opt.errors import ModelError
from go_opt.frontends.recording.binding import Expression

_SCHEMA_MAJOR = 8
_MOST_BYTES: Final = 32 << 20  # about 2 kB a node; parsed, the text takes up to 25 times as much
# The second path is that of torch before 2.8.
_PROGRAM = re.compile(r"(^|/)models/[^/]+\.json$|^serialized_exported_program\.json$")


def read_program(source: str | os.PathLike[str] | IO[bytes]) -> dict[str, Any]:
    """The program of an archive, as ``torch/_export/serde/schema.py`` describes it; weights are not read.

    Raises:
      ModelError: the file cannot be read, or is not an archive of one program.
    """
    shown = repr(str(source)) if isinstance(source, str | os.PathLike) else "in memory"
    try:
        with zipfile.ZipFile(source) as archive:
            names = [name for name in archive.namelist() if _PROGRAM.search(name)]
            text = b""
            if len(names) == 1:
                with archive.open(names[0]) as entry:  # the size that it declares may be false
                    text = entry.read(_MOST_BYTES + 1)
        is_too_long = len(text) > _MOST_BYTES
        program = json.loads(text) if names and text and not is_too_long else {}
    except OSError as error:
        raise ModelError(f"torch archive {shown} cannot be read: {error.strerror or error}.") from None
    except Exception:  # damaged archives fail in more ways than can be named
        raise ModelError(f"{shown} is truncated or no archive of torch.export.save.") from None
    if len(names) != 1:
        raise ModelError(f"torch archive {shown} has {len(names)} programs, not one of torch.export.save.")
    if is_too_long:
        raise ModelError(
            f"torch archive {shown} has a program of more than {_MOST_BYTES >> 20} MiB without its weights."
        )
    version = program.get("schema_version") if isinstance(program, dict) else None
    version = version if isinstance(version, dict) else {}
    if version.get("major") != _SCHEMA_MAJOR:
        raise ModelError(
            f"torch archive {shown} has schema {version.get('major')}, where {_SCHEMA_MAJOR} is known: "
            "export the model with a newer torch."
        )
    return program


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


_NAMES: Final = ("parameter_name", "buffer_name", "tensor_constant_name")


def source_name(spec: Mapping[str, Any]) -> tuple[str, str]:
    """The tensor of a parameter, buffer, constant or input, and its name in the model."""
    ((kind, row),) = spec.items()
    argument = row.get("arg", {})
    tensor = argument.get("as_tensor", argument if kind != "user_input" else {}).get("name")
    return tensor, next((row[key] for key in _NAMES if key in row), tensor)


def is_of_sequence(spec: Mapping[str, Any]) -> bool:
    """Whether a source has no value in the model's state: an input, or a buffer that is not persistent."""
    ((kind, row),) = spec.items()
    return kind == "user_input" or (kind == "buffer" and not row.get("persistent", True))


class Returned(NamedTuple):
    """A tensor that a program returns: by the name of the source of which it is the new value, or its own."""

    name: str
    is_new: bool
    is_gradient: bool  # by which the source is to be updated


def returned(program: Mapping[str, Any]) -> list[Returned]:
    """The tensors that the program returns.

    Results are named as torch names inputs: ``past_key_values_0_1`` for an entry of a tree.
    """
    specs = program["graph_module"]["signature"]["output_specs"]
    user = [spec["user_output"] for spec in specs if "user_output" in spec]
    paths = list(_paths(_tree(program)))
    if len(paths) != len(user):
        paths = [(str(i),) for i in range(len(user))]
    names = iter("_".join(path if path and not path[0].isdigit() else ("result", *path)) for path in paths)
    found = []
    for spec in specs:
        ((kind, row),) = spec.items()
        name = next(names) if kind == "user_output" else ""
        if "name" in row.get("arg", {}) or "as_tensor" in row.get("arg", {}):
            is_gradient = kind == "gradient_to_parameter"
            keys = (*_NAMES, "user_input_name") if kind.endswith("_mutation") or is_gradient else ()
            source = next((row[key] for key in keys if key in row), "")
            name = "loss" if kind == "loss_output" else name
            found.append(Returned(source or name or row["arg"].get("name", kind), bool(source), is_gradient))
    return found


def _tree(program: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tree of the results; a leaf if the program does not say it."""
    calls = program["graph_module"].get("module_call_graph") or [{}]
    text = (calls[0].get("signature") or {}).get("out_spec")
    tree: Mapping[str, Any] = json.loads(text)[1] if text else {"type": None}
    return tree


def _paths(tree: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    if tree["type"] is None:
        yield ()
        return
    children = tree["children_spec"]
    for key, child in zip(_keys(tree["context"], len(children)), children, strict=True):
        for path in _paths(child):
            yield (key, *path)


def _keys(context: str | None, count: int) -> Sequence[str]:
    """The keys of a dict, or of the fields of an object; numbers for a list."""
    keys = json.loads(context) if context else None
    for given in (keys, keys[0] if isinstance(keys, list) and keys else None):
        if isinstance(given, list) and len(given) == count and all(isinstance(key, str) for key in given):
            return given
    return [str(i) for i in range(count)]


class Sizes:
    """Numbers for the sizes of a program: the user's for bound dimensions, else those of the example."""

    def __init__(self, program: Mapping[str, Any], dims: Mapping[str, int]) -> None:
        """Bind ``dims``, by ``input[axis]`` or by the name of a symbol.

        Raises:
          ModelError: a dimension that the program does not have, or a size out of its range.
        """
        graph = program["graph_module"]["graph"]
        self._is_bound = bool(dims)
        self._symbols = dict[str, int]()  # symbol -> size
        sizes = (size for meta in graph["tensor_values"].values() for size in meta["sizes"])
        for size in (*sizes, *graph["sym_int_values"].values()):
            symbol = _symbol(size)
            if symbol and size["as_expr"].get("hint"):
                self._symbols[symbol] = int(size["as_expr"]["hint"]["as_int"])
        names = _names(program)
        ranges = program.get("range_constraints", {})
        for name, value in dims.items():
            symbol = names.get(name, name)
            if symbol not in ranges:
                known = ", ".join(names) or "none"
                raise ModelError(f"the model has no dimension {name!r}; it has {known}.", field="dims")
            limits = ranges.get(symbol, {})
            least, most = limits.get("min_val"), limits.get("max_val")
            if (least is not None and value < least) or (most is not None and value > most):
                raise ModelError(
                    f"dimension {name!r} is {value}, where the model was exported for {least} to {most}.",
                    field="dims",
                )
            self._symbols[symbol] = value

    def size(self, size: Mapping[str, Any], where: str) -> int:
        """The number for a size of the program.

        Raises:
          ModelError: the size depends on tensor values, or on an unknown function.
        """
        if "as_int" in size:
            return int(size["as_int"])
        expression = size["as_expr"]
        if expression.get("hint") and not self._is_bound:
            return int(expression["hint"]["as_int"])
        text = expression["expr_str"]
        value = Expression(text).value(self._symbols)
        if value is None:
            unknown = [one for one in re.findall(r"Symbol\('(\w+)'", text) if one not in self._symbols]
            if unknown:
                problem = f"{where} has a size that depends on values: bind dimension {unknown[0]!r}."
                raise ModelError(problem, field="dims")
            raise ModelError(f"{where} has the size {text}, which from_torch cannot compute.")
        return int(value)


def _symbol(size: Mapping[str, Any]) -> str:
    """The symbol of a size; empty for a number or an expression."""
    text = size["as_expr"]["expr_str"] if "as_expr" in size else ""
    return text.split("'")[1] if text.startswith("Symbol('") and text.count("(") == 1 else ""


def _names(program: Mapping[str, Any]) -> dict[str, str]:
    """``input[axis]`` -> symbol."""
    graph = program["graph_module"]["graph"]
    names = {}
    for spec in program["graph_module"]["signature"]["input_specs"]:
        tensor = spec.get("user_input", {}).get("arg", {}).get("as_tensor")
        if tensor is not None:
            for axis, size in enumerate(graph["tensor_values"][tensor["name"]]["sizes"]):
                if _symbol(size):
                    names[f"{tensor['name']}[{axis}]"] = _symbol(size)
    return names
