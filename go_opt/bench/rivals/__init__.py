"""The portfolio's rivals with one interface: ``compete(RIVALS[name], problem, limits, seed)``."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from go_opt.bench.rivals.cp_sat import cp_sat
from go_opt.bench.rivals.metis import metis
from go_opt.bench.rivals.order_slice import genetic, genetic_with_fusion, greedy, slice_default
from go_opt.bench.rivals.placement_search import annealing, random_sampling
from go_opt.bench.rivals.problem import Problem, pose
from go_opt.bench.rivals.trial import Limits, Outcome, Point, Rival, Trial, compete

__all__ = ["RIVALS", "Limits", "Outcome", "Point", "Problem", "Rival", "Trial", "compete", "pose"]

RIVALS: Final[Mapping[str, Rival]] = MappingProxyType(
    {
        rival.name: rival
        for rival in (
            Rival("greedy", "equal shares along the default order", greedy),
            Rival("random", "uniform samples made valid by the solver", random_sampling),
            Rival("annealing", "moves made valid by FIX, from the greedy plan", annealing),
            Rival("slice", "the cheapest slicing of the default order", slice_default),
            Rival("genetic", "slicing + random-key genetic order search", genetic),
            Rival("genetic-fusion", "the same for order and kernels at once", genetic_with_fusion),
            Rival("metis", "METIS, repaired by FIX and by slicing", metis, needs="pymetis"),
            Rival("cp-sat", "CP-SAT on the placement, from the slicing", cp_sat, needs="ortools"),
        )
    }
)
