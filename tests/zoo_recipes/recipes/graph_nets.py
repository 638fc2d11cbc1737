"""Networks on graphs: citations, meshes, proteins and molecules."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tests.zoo_recipes.exporters import flax_graph
from tests.zoo_recipes.recipe import Recipe


def _floats(*shape: int) -> NDArray:
    return np.zeros(shape, np.float32)


def _integers(*shape: int) -> NDArray:
    return np.zeros(shape, np.int32)


def _ends(edges: int) -> tuple[NDArray, NDArray]:
    """The senders and receivers of directed edges."""
    return _integers(edges), _integers(edges)


def _recipe(
    name: str, path: str, what: str, inputs: tuple[NDArray, ...], settings: tuple[int, ...] = ()
) -> Recipe:
    """Each of these models is a family."""
    return Recipe(name, name, "flax", f"models.{path}, {what}", partial(flax_graph, path, settings, inputs))


RECIPES: Final = (
    _recipe(
        "egnn",
        "egnn.Egnn",
        "32 molecules of 18 atoms",
        (_floats(576, 15), _floats(576, 3), *_ends(32 * 18 * 17)),
        (15,),
    ),
    _recipe("gat", "gat.Gat", "591 nodes, 16591 edges", (_floats(591, 50), *_ends(16_591))),
    _recipe(
        "gated_gcn",
        "gated_gcn.GatedGcn",
        "938 nodes, 34400 edges",
        (_integers(938), _floats(34_400, 1), *_ends(34_400)),
        (7, 6),
    ),
    _recipe(
        "gcnii",
        "gcnii.Gcn2",
        "2708 nodes, 13264 edges",
        (_floats(2708, 1433), _floats(13_264, 1), *_ends(13_264)),
        (1433, 7),
    ),
    _recipe(
        "gin_virtual",
        "gin.GinVirtual",
        "128 molecules, 3328 atoms, 7200 edges",
        (_integers(9, 3328), _integers(3, 7200), *_ends(7200), _integers(3328), _floats(128, 1)),
    ),
    _recipe(
        "graphormer",
        "graphormer.Graphormer",
        "16 molecules of 24 atoms",
        (
            _integers(16, 24, 9),
            _integers(16, 24),
            _integers(16, 24, 24),
            _integers(16, 24, 24, 5, 3),
        ),
    ),
    _recipe(
        "graphsage_lstm",
        "graphsage.GraphSageLstm",
        "16 nodes, 25 neighbours, 10 of each",
        (_floats(16, 602), _floats(16, 25, 602), _floats(400, 10, 602)),
    ),
    _recipe(
        "meshgraphnet",
        "meshgraphnet.MeshGraphNet",
        "1885 nodes, 10848 edges",
        (_floats(1885, 11), _floats(10_848, 3), *_ends(10_848)),
        (11, 3, 2),
    ),
    _recipe(
        "mpnn",
        "mpnn.Mpnn",
        "20 molecules, 360 atoms, 746 edges",
        (_floats(360, 13), _floats(746, 5), *_ends(746), _integers(360)),
        (20,),
    ),
    _recipe(
        "pna",
        "pna.Pna",
        "128 molecules, 2970 atoms, 6374 edges",
        (_integers(2970), _integers(6374), *_ends(6374), _floats(2970, 1), _integers(2970)),
        (128,),
    ),
    _recipe(
        "schnet",
        "schnet.SchNet",
        "32 molecules of 18 atoms",
        (_integers(576), _floats(576, 3), *_ends(32 * 18 * 17), _integers(576)),
        (32,),
    ),
)
