"""The public functions: load a model, pick a target, optimize, evaluate, verify, explain."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from go_opt.api.inputs import ZOO_PREFIX as ZOO_PREFIX
    from go_opt.api.inputs import load as load
    from go_opt.api.inputs import target as target
    from go_opt.api.inputs import whole_case as whole_case
    from go_opt.api.plans import MAX_INFERENCES as MAX_INFERENCES
    from go_opt.api.plans import evaluate as evaluate
    from go_opt.api.plans import explain as explain
    from go_opt.api.plans import timeline as timeline
    from go_opt.api.plans import verify as verify
    from go_opt.api.searching import optimize as optimize
else:
    from go_opt.lazy_imports import lazy_imports

    __getattr__, __dir__, __all__ = lazy_imports(__name__)
