"""The portfolio's rivals with one interface: ``compete(RIVALS[name], problem, limits, seed)``."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from go_opt.bench.rivals.searches import (
    annealing,
    annealing_greedy,
    genetic,
    genetic_with_fusion,
    greedy,
    policy,
    policy_finetuned,
    policy_untrained,
    random_sampling,
    slice_default,
)
from go_opt.bench.rivals.trial import Limits, Outcome, Point, Problem, Rival, Trial, compete, pose

__all__ = ["RIVALS", "Limits", "Outcome", "Point", "Problem", "Rival", "Trial", "compete", "pose"]

RIVALS: Final[Mapping[str, Rival]] = MappingProxyType(
    {
        rival.name: rival
        for rival in (
            Rival("greedy", greedy),  # equal shares along the default order
            Rival("random", random_sampling),  # uniform samples made valid by the solver
            Rival("annealing", annealing),  # moves made valid by FIX, from a random placement
            Rival("annealing-greedy", annealing_greedy),  # the same from the greedy plan
            Rival("policy-untrained", policy_untrained),  # walks that know nothing, made valid by FIX
            Rival("policy", policy),  # walks with the shipped weights
            Rival("policy-finetuned", policy_finetuned),  # the same, learning from their own samples
            Rival("slice", slice_default),  # the cheapest slicing of the default order
            Rival("genetic", genetic),  # slicing + random-key genetic order search
            Rival("genetic-fusion", genetic_with_fusion),  # the same for order and kernels at once
        )
    }
)
