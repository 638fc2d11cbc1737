"""The shardings of a step as a Python module of JAX, which users import and ``run`` executes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from go_opt.common.version import VERSION
from go_opt.parallel.export.shardings import Parameter, Shardings, Spec
from go_opt.parallel.transformer import pairs_text

JAX_FILE: Final = "jax_shardings.py"
_TEXT: Final = '''\
"""JAX shardings of one training step. Written by `go-opt export` {version}.

{model}
{parallel}

Devices are numbered by tensor, expert, data, pipeline; those of a pipeline rank are one mesh.
"""

import math
from typing import NamedTuple

import numpy as np
from jax import devices
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

RANKS = {ranks}
AXES = {axes}
BATCH, MICRO_BATCH, MICRO_BATCHES = {batch}, {micro_batch}, {micro_batches}  # sequences; of a replica
SCHEDULE = "{schedule}"

# Stages in the order of the model: their rank, and for each layer what the backward pass computes again.
STAGES = [
{stages}]

# Arrays of a pass.
ACTIVATIONS = {{
{activations}}}


class Parameter(NamedTuple):
    """A parameter's shape, and how it lies: kept, read in a pass, its summed gradient, its moments."""

    shape: tuple
    weight: P
    read: P
    gradient: P
    moments: P


LAYER = {{
{of_layer}}}
ENDS = {{
{of_ends}}}


def mesh(rank=0, of=None):
    """The mesh of a pipeline rank, of all devices or of those given."""
    size = math.prod(AXES.values())
    own = (devices() if of is None else of)[rank * size : (rank + 1) * size]
    return Mesh(np.array(own).reshape(tuple(AXES.values())), tuple(AXES))


def sharding(spec, rank=0):
    """A spec on the mesh of a pipeline rank."""
    return NamedSharding(mesh(rank), spec)
'''


def jax_text(shardings: Shardings, model: str) -> str:
    """The module's text."""
    chosen, batch = shardings.chosen, shardings.step.case.batch
    return _TEXT.format(
        version=VERSION,
        model=model,
        parallel=pairs_text(vars(chosen)),
        ranks=chosen.pipeline,
        axes=_dict_text(shardings.mesh),
        batch=batch,
        micro_batch=chosen.micro_batch,
        micro_batches=chosen.micro_batches(batch),
        schedule=chosen.schedule,
        stages="".join(f"    ({stage.rank}, {_dict_text(stage.layers)}),\n" for stage in shardings.stages),
        activations="".join(
            f'    "{name}": {spec_text(spec)},\n' for name, spec in shardings.activations.items()
        ),
        of_layer=_parameters_text(shardings.of_layer),
        of_ends=_parameters_text(shardings.of_ends),
    )


def _dict_text(values: Mapping[str, int] | Mapping[int, str]) -> str:
    return repr(dict(values)).replace("'", '"')


def _parameters_text(parameters: Mapping[str, Parameter]) -> str:
    return "".join(
        f'    "{name}": Parameter({one.shape}, {", ".join(map(spec_text, _specs(one)))}),\n'
        for name, one in parameters.items()
    )


def _specs(one: Parameter) -> tuple[Spec, Spec, Spec, Spec]:
    return one.weight, one.read, one.gradient, one.moments


def spec_text(spec: Spec) -> str:
    """A spec as the text of a ``PartitionSpec``, ``P``."""
    names = ["None" if not axes else repr(axes[0] if len(axes) == 1 else axes) for axes in spec]
    return f"P({', '.join(names)})".replace("'", '"')
