"""The shardings of a step that is a JAX function, as a Python module that users import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from go_opt.common.version import VERSION
from go_opt.parallel.export.jax_file import spec_text

_TEXT: Final = '''\
"""JAX shardings of the training step {model}, planned for {target}. Written by go-opt {version}.

    jax.jit(step, in_shardings=in_shardings(args), out_shardings=out_shardings(jax.eval_shape(step, *args)))
"""

import math

import numpy as np
from jax import devices, tree
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

AXES = {axes}  # of the mesh; the devices of the last one are neighbours

# The arrays of arguments and results, as JAX flattens them.
ARGUMENTS = {{
{arguments}}}
RESULTS = {{
{results}}}


def mesh(of=None):
    """The mesh of all devices, or of those given."""
    found = (devices() if of is None else of)[: math.prod(AXES.values())]
    return Mesh(np.array(found).reshape(tuple(AXES.values())), tuple(AXES))


def in_shardings(args, of=None):
    """Of the tuple of arguments, a tree of the same form."""
    return _tree(args, ARGUMENTS, of)


def out_shardings(results, of=None):
    """Of the results, or of their shapes."""
    return _tree(results, RESULTS, of)


def _tree(like, specs, of):
    on = mesh(of)
    return tree.unflatten(tree.structure(like), [NamedSharding(on, spec) for spec in specs.values()])
'''


def function_text(
    model: str,
    target: str,
    axes: Mapping[str, int],
    arguments: Mapping[str, Sequence[tuple[str, ...]]],
    results: Mapping[str, Sequence[tuple[str, ...]]],
) -> str:
    """The module's text; specs are by the names of arrays."""

    def rows(specs: Mapping[str, Sequence[tuple[str, ...]]]) -> str:
        return "".join(f"    {name!r}: {spec_text(tuple(spec))},\n" for name, spec in specs.items())

    listed = ", ".join(f'"{name}": {size}' for name, size in axes.items())
    return _TEXT.format(
        model=repr(model),
        target=target,
        version=VERSION,
        axes=f"{{{listed}}}",
        arguments=rows(arguments),
        results=rows(results),
    )
