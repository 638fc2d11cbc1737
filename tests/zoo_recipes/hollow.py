"""Exports of large models of ``transformers`` that never hold the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, Final

from go_opt import from_onnx
from go_opt.model.graph import Graph

Names = tuple[Sequence[str], Sequence[str]]  # of inputs and of outputs

# Smaller tensors may decide a shape, so their values are kept.
_SMALL: Final = 2**14


def hollow_graph(
    model: str,
    config: str,
    settings: Mapping[str, Any],
    inputs: Mapping[str, Any],
    adapt: Callable[[Any], Any] = lambda network: network,
    names: Names | None = None,
) -> Graph:
    """A model class under a configuration class with ``settings``, changed by ``adapt``.

    The inputs are arrays, or nested lists of arrays; ``names`` are those of inputs and outputs.
    """
    import transformers

    sizes = getattr(transformers, config)(attn_implementation="eager", **settings)
    network = hollow_network(partial(getattr(transformers, model), sizes))
    return exported_graph(adapt(network), inputs, names)


def hollow_network(make: Callable[[], Any]) -> Any:
    """The ``torch.nn.Module`` that ``make`` gives, its large parameters without values."""
    with _parameters_without_values():
        network = make()
    _fill(network)
    return network


def exported_graph(network: Any, inputs: Mapping[str, Any], names: Names | None) -> Graph:
    """A module called with ``inputs`` by name."""
    import torch
    from torch.utils._pytree import tree_map

    tensors = tree_map(torch.from_numpy, dict(inputs))
    with torch.no_grad():
        program = torch.onnx.export(network.eval(), (), kwargs=tensors, dynamo=True, verbose=False)
    if names is not None:
        ends = (*program.model.graph.inputs, *program.model.graph.outputs)
        for value, name in zip(ends, (*names[0], *names[1]), strict=True):
            value.name = name
    return from_onnx(_stripped(program.model))


@contextmanager
def _parameters_without_values() -> Iterator[None]:
    import torch

    register = torch.nn.Module.register_parameter

    def on_meta(module: Any, name: str, parameter: Any) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = torch.nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    torch.nn.Module.register_parameter = on_meta
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register


def _fill(network: Any) -> None:
    """Give the parameters memory: large ones some that is never touched, so that it costs nothing."""
    import torch

    filled: dict[int, Any] = {}  # by the parameter it stands for, so that tied weights stay tied
    for module in network.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in filled:
                values = torch.empty(parameter.shape, dtype=parameter.dtype)
                if values.numel() <= _SMALL:
                    # Different values, or the exporter makes one tensor of all biases.
                    values.fill_(1 + len(filled))
                filled[id(parameter)] = (parameter, torch.nn.Parameter(values, requires_grad=False))
            module._parameters[name] = filled[id(parameter)][1]


def _stripped(model: Any) -> Any:
    """The exported model, its large weights in a file that is never written."""
    ir: Any = import_module("onnx_ir")  # which torch.onnx exports to
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor.size > _SMALL:
            value.const_value = ir.ExternalTensor(
                "weights", 0, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=value.name
            )
    return ir.serde.serialize_model(model)
