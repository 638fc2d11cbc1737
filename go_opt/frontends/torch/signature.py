"""The signature of an exported program: names of its sources and results, and which it writes to."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

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
