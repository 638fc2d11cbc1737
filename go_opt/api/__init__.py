"""The public functions: load a model, pick a target, optimize, evaluate, verify, explain."""

from go_opt.api.inputs import ZOO_PREFIX, load, target, whole_case
from go_opt.api.plans import MAX_INFERENCES, evaluate, explain, timeline, verify
from go_opt.api.searching import optimize

__all__ = [
    "MAX_INFERENCES",
    "ZOO_PREFIX",
    "evaluate",
    "explain",
    "load",
    "optimize",
    "target",
    "timeline",
    "verify",
    "whole_case",
]
