"""Options of commands about training steps of models of repeated blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal, cast

import typer

from go_opt.errors import InvalidInputError

if TYPE_CHECKING:
    from go_opt.parallel import Case, Step
    from go_opt.result import Objective

PREFIX: Final = "gpt:"
AnyObjective = Literal["throughput", "latency", "step"]


@dataclass(frozen=True)
class StepOptions:
    """An objective, and what belongs to ``step``: a training step."""

    objective: Annotated[
        AnyObjective | None, typer.Option(help="By default the one of the plan; step: a training step.")
    ] = None
    batch: Annotated[
        int | None, typer.Option(help="Sequences of a training step, of all devices together.")
    ] = None
    parallel: Annotated[
        str | None,
        typer.Option(metavar="KEY=VALUE,…", help="Degrees tensor, pipeline, data … of a training step."),
    ] = None

    def is_step(self, model: str) -> bool:
        """Whether they ask for a training step.

        Raises:
          InvalidInputError: the objective is of other models, or needs options that are not given.
        """
        is_repeated = model.startswith(PREFIX)
        if self.objective == "step" and not is_repeated:
            like = f"{PREFIX}hidden=768,layers=12,heads=12,sequence=1024"
            problem = f"--objective step is for models such as {like}, not {model[:100]!r}"
            raise InvalidInputError(f"{problem}.", field="objective")
        if self.objective != "step" and is_repeated:
            raise InvalidInputError(f"a model {PREFIX}… needs --objective step.", field="objective")
        for name in ("batch", "parallel"):
            if self.objective != "step" and getattr(self, name) is not None:
                raise InvalidInputError(f"--{name} is for --objective step.", field=name)
        return is_repeated

    def of_plan(self) -> Objective | None:
        """The objective, if it is not ``step``."""
        return None if self.objective == "step" else cast("Objective | None", self.objective)

    def case(self, model: str, target: str | None) -> Case:
        """The step of these options."""
        from go_opt import api
        from go_opt.parallel import Case

        if self.batch is None:
            raise InvalidInputError("--batch is missing: the sequences of a step.", field="batch")
        if target is None:
            raise InvalidInputError("--target is missing, such as dgx-a100-512.", field="target")
        return Case.read(model, api.target(target), self.batch)

    def step(self, model: str, target: str | None) -> Step:
        """The step in the configuration of ``--parallel``."""
        from go_opt.parallel import cost_step

        if self.parallel is None:
            raise InvalidInputError("--parallel is missing, such as tensor=8,data=8.", field="parallel")
        return cost_step(self.case(model, target), self.parallel)
