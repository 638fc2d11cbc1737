"""Plans of training steps: searched, costed or from files, checked, explained and drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from go_opt.parallel.plans.answers import StepAnswer as StepAnswer
    from go_opt.parallel.plans.answers import costed_step as costed_step
    from go_opt.parallel.plans.answers import loaded_step as loaded_step
    from go_opt.parallel.plans.answers import searched_step as searched_step
    from go_opt.parallel.plans.plan_file import is_step_plan as is_step_plan
else:
    from go_opt.lazy_imports import lazy_imports

    __getattr__, __dir__, __all__ = lazy_imports(__name__)
