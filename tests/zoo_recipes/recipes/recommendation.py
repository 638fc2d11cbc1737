"""Recommendation: many tables that are looked up side by side, and little compute behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from go_opt import from_jax
from go_opt.model.graph import Graph
from tests.zoo_recipes.recipe import Recipe

_CRITEO_COLUMNS: Final = 26
_ALI_CCP_COLUMNS: Final = 18


def _graph(module: str, model: str, settings: dict[str, Any], inputs: Callable[[], Sequence[Any]]) -> Graph:
    """A Flax model of ``tests.zoo_recipes.models``; its tables have shapes only, no values."""
    from importlib import import_module

    from flax import nnx

    made = partial(getattr(import_module(f"tests.zoo_recipes.models.{module}"), model), **settings)
    structure, weights = nnx.split(nnx.eval_shape(lambda: made(rngs=nnx.Rngs(0))))
    return from_jax(
        lambda weights, *inputs: nnx.merge(structure, weights)(*inputs),
        weights,
        *inputs(),
        weight_argnums=(0,),
    )


def _floats(*shape: int) -> Any:
    import jax

    return jax.ShapeDtypeStruct(shape, "float32")


def _ids(*shape: int) -> Any:
    import jax

    return jax.ShapeDtypeStruct(shape, "int32")


def _recipe(
    name: str, family: str, path: str, size: str, inputs: Callable[[], Sequence[Any]], **settings: Any
) -> Recipe:
    module, model = path.split(".")
    build = partial(_graph, module, model, settings, inputs)
    return Recipe(name, family, "flax", f"models.{path}, {size}", build)


def _criteo(name: str, family: str, path: str, batch: int, **settings: Any) -> Recipe:
    def inputs() -> Sequence[Any]:
        return [_floats(batch, 13), *[_ids(batch)] * _CRITEO_COLUMNS]

    return _recipe(name, family, path, f"{batch} rows of Criteo", inputs, **settings)


def _dlrm(name: str, data: str, batch: int, bottom: tuple[int, ...], top: tuple[int, ...]) -> Recipe:
    return _criteo(name, "dlrm", "dlrm.Dlrm", batch, data=data, bottom=bottom, top=top)


def _video(batch: int) -> list[Any]:
    return [_floats(batch, 8), *[_ids(batch)] * 7]


def _ali_ccp(name: str, family: str, path: str, batch: int) -> Recipe:
    return _recipe(name, family, path, f"{batch} rows of Ali-CCP", lambda: [_ids(batch)] * _ALI_CCP_COLUMNS)


RECIPES: Final = (
    _criteo("autoint", "autoint", "ctr.AutoInt", 256),
    _recipe(
        "bst",
        "bst",
        "behaviour.Bst",
        "256 candidates, 20 items before each",
        lambda: [*[_ids(256, 21)] * 3, *[_ids(256)] * 8],
        length=21,
    ),
    _criteo("dcn_mix", "dcn", "ctr.DcnMix", 512),
    _criteo("dcn_v2", "dcn", "ctr.DcnV2", 512),
    _criteo("deepfm", "deepfm", "ctr.DeepFm", 1024),
    _recipe(
        "dien",
        "din",
        "behaviour.Dien",
        "128 candidates, 100 items before each",
        lambda: [*[_ids(128)] * 3, *[_ids(128, 100)] * 2, _floats(128, 100)],
    ),
    _recipe(
        "din",
        "din",
        "behaviour.Din",
        "128 candidates, 100 items before each",
        lambda: [*[_ids(128)] * 2, *[_ids(128, 100)] * 2, _floats(128, 100)],
    ),
    _dlrm("dlrm_kaggle", "Kaggle", 128, (512, 256, 64, 16), (512, 256)),
    _dlrm("dlrm_terabyte", "Terabyte", 2048, (512, 256, 128), (1024, 1024, 512, 256)),
    _ali_ccp("mmoe", "mmoe", "multi_task.Mmoe", 1024),
    _ali_ccp("ple", "mmoe", "multi_task.Ple", 1024),
    _recipe(
        "two_tower_retrieval",
        "retrieval",
        "retrieval.TwoTower",
        "128 queries, 1024 candidates",
        lambda: [_video(128), *[_ids(128, 50)] * 2, [_ids(128)] * 7, _video(1024)],
        dense=8,
    ),
    _criteo("wide_and_deep", "wide_and_deep", "ctr.WideAndDeep", 512),
    _criteo("xdeepfm", "xdeepfm", "ctr.XDeepFm", 128),
)
