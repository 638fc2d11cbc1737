"""Every rival of the policy in one harness: ``METHODS[name].run(instance, evaluations, seed)``."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from go_opt.bench.baselines.black_box import anneal, anneal_from_greedy, random_sampling
from go_opt.bench.baselines.harness import Method, Run, Samples, analytical
from go_opt.bench.baselines.order_slice import (
    genetic_mix,
    genetic_order,
    genetic_order_and_fusion,
    genetic_structured_order,
    greedy,
    slice_default,
    slice_fixed,
    slice_structured,
    slice_uniform,
)

__all__ = ["METHODS", "Method", "Run", "Samples", "analytical"]

METHODS: Final[Mapping[str, Method]] = MappingProxyType(
    {
        method.name: method
        for method in (
            Method("random", "black_box", random_sampling),
            Method("annealing", "black_box", anneal),
            Method("greedy", "order_slice", greedy),
            Method("greedy + annealing", "order_slice", anneal_from_greedy),
            Method("slice", "order_slice", slice_default),
            Method("slice, fixed orders", "order_slice", slice_fixed),
            Method("slice, uniform keys", "order_slice", slice_uniform),
            Method("slice, structured keys", "order_slice", slice_structured),
            Method("genetic", "order_slice", genetic_order),
            Method("genetic, structured start", "order_slice", genetic_structured_order),
            Method("genetic, feature mix", "order_slice", genetic_mix),
            Method("genetic, fusion too", "order_slice", genetic_order_and_fusion),
        )
    }
)
