"""Training steps of models of repeated blocks, on one device up to a cluster of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from go_opt.parallel.block import Machine as Machine
    from go_opt.parallel.configuration import Configuration as Configuration
    from go_opt.parallel.configuration import Transformer as Transformer
    from go_opt.parallel.configuration import parse_transformer as parse_transformer
    from go_opt.parallel.search import StepPlan as StepPlan
    from go_opt.parallel.search import plan_step as plan_step
    from go_opt.parallel.step import Case as Case
    from go_opt.parallel.step import Step as Step
    from go_opt.parallel.step import cost_step as cost_step
else:
    from go_opt.lazy_imports import lazy_imports

    __getattr__, __dir__, __all__ = lazy_imports(__name__)
