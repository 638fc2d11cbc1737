"""Converts training steps, their plans and costs to and from their messages.

Errors name the field of the request at fault, from ``step``, ``step_plan`` or ``target`` on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, Final, Literal

from google.protobuf.message import Message

from go_opt.env import Target
from go_opt.errors import InvalidInputError, PlanError
from go_opt.parallel import Case, Configuration, Machine, Step, StepPlan, Transformer, cost_step, plan_step
from go_opt.parallel.configuration import MAX_COUNT, RECOMPUTE, TRANSFORMER_PREFIX, ZERO, pairs_text
from go_opt.parallel.plans.answers import StepAnswer
from go_opt.parallel.plans.checks import check_division
from go_opt.parallel.schedule import simulate
from go_opt.parallel.step import Layers
from go_opt.proto import optimizer_pb2, step_pb2
from go_opt.service.messages.convert import message_of, value_of
from go_opt.service.messages.requests import request_part

_OF_SEARCH: Final = ("step", "target", "objective", "budget_s")  # fields of a request for a step


def answer_search(
    message: optimizer_pb2.OptimizeRequest, target: Target, budget_s: float, should_stop: Callable[[], bool]
) -> tuple[optimizer_pb2.OptimizeResponse, bool]:
    """The best division of a training step, and whether the search was not cut short.

    Raises:
      InvalidInputError: the request is malformed.
      InfeasibleError: no configuration fits.
    """
    _check_search(message)
    found = plan_step(case_from_proto(message.step, target), budget_s, should_stop)
    return _found_to_proto(found), found.is_complete


def answer_about(query: Literal["evaluate", "verify", "explain"], message: Any, target: Target) -> Message:
    """The answer to a request about a plan of a training step.

    Raises:
      InvalidInputError: the request is malformed, or model, batch or devices cannot be divided so.
    """
    case = case_from_proto(message.step, target)
    step = step_from_proto(message.step_plan, case)
    answer = StepAnswer(step, TRANSFORMER_PREFIX + pairs_text(vars(case.model)))
    if query == "evaluate":
        return optimizer_pb2.EvaluateResponse(step=_metrics_to_proto(step))
    if query == "verify":
        found = [optimizer_pb2.Violation(**vars(violation)) for violation in answer.verify()]
        return optimizer_pb2.VerifyResponse(violations=found)
    response = optimizer_pb2.ExplainResponse()
    response.explanation.update(answer.explanation())
    return response


def case_to_proto(case: Case) -> step_pb2.TrainingStep:
    """The message for a step's model and batch; :func:`case_from_proto` is the inverse."""
    return step_pb2.TrainingStep(model=step_pb2.Transformer(**vars(case.model)), batch=case.batch)


def case_from_proto(message: step_pb2.TrainingStep, target: Target) -> Case:
    """The step of a request.

    Raises:
      InvalidInputError: a size is missing or out of range, or the target has no levels.
    """
    model = transformer_from_proto(message.model, "step.model")
    with request_part("target"):
        machine = Machine(target)
    with request_part("step", step_pb2.TrainingStep):
        return Case(model, machine, _count(message, "batch"))


def transformer_from_proto(message: step_pb2.Transformer, path: str) -> Transformer:
    """The model in the field ``path`` of a request; raises InvalidInputError: a size is out of range."""
    with request_part(path, step_pb2.Transformer):
        given: dict[str, Any] = {}
        for field in fields(Transformer):
            value = _count(message, field.name)
            given[field.name] = value or (0 if field.default is MISSING else field.default)
        return Transformer(**given)


def plan_to_proto(step: Step) -> step_pb2.StepPlan:
    """The message for how a step is divided; :func:`step_from_proto` is the inverse."""
    chosen = message_of(step.chosen, step_pb2.StepConfiguration)
    layers = [step_pb2.RankLayers(**dict(zip(RECOMPUTE, row, strict=True))) for row in step.layers]
    return step_pb2.StepPlan(configuration=chosen, layers=layers)


def step_from_proto(message: step_pb2.StepPlan, case: Case) -> Step:
    """The step of a plan.

    Raises:
      InvalidInputError: model, batch or devices cannot be divided so.
    """
    with request_part("step_plan.configuration", step_pb2.StepConfiguration):
        chosen = _configuration(message.configuration)
        even = cost_step(case, chosen)
    if not message.layers:
        return even
    with request_part("step_plan.layers"):
        step = Step(case, chosen, tuple(map(_layers, message.layers)))
        for violation in check_division(step):
            raise PlanError(violation.message, field=violation.constraint)
    return step


def _metrics_to_proto(step: Step, simulated_s: float | None = None) -> step_pb2.StepMetrics:
    """The message for what a step costs."""
    return message_of(
        step,
        step_pb2.StepMetrics,
        terms_s=step.terms_s,
        memory_limit_bytes=step.case.memory_bytes,
        fits=not step.lacks,
        simulated_s=simulated_s,
    )


def _found_to_proto(plan: StepPlan) -> optimizer_pb2.OptimizeResponse:
    """The answer to a search; :func:`found_from_proto` is the inverse."""
    choices = [
        step_pb2.StepChoice(plan=plan_to_proto(step), metrics=_metrics_to_proto(step, simulate(step).step_s))
        for step in plan.choices
    ]
    answer = message_of(plan, step_pb2.StepAnswer, choices=choices)
    return message_of(plan, optimizer_pb2.OptimizeResponse, objective="OBJECTIVE_STEP", step=answer)


def found_from_proto(message: optimizer_pb2.OptimizeResponse, case: Case) -> StepPlan:
    """What a search found. Costs are those of this go-opt, from the plans of the message."""
    found = message.step
    return StepPlan(
        tuple(step_from_proto(choice.plan, case) for choice in found.choices),
        message.lower_bound_s,
        found.configurations,
        found.solved,
        found.is_complete,
        message.wall_s,
    )


def costs_of(message: step_pb2.StepMetrics) -> dict[str, Any]:
    """What a service says a step costs, with the names of ``go-opt evaluate --json``."""
    return {
        "step_s": message.step_s,
        "terms_s": dict(message.terms_s),
        "memory_bytes": list(message.memory_bytes),
        "memory_limit_bytes": message.memory_limit_bytes,
        "fits": message.fits,
        "lacks": list(message.lacks),
    }


def _check_search(message: optimizer_pb2.OptimizeRequest) -> None:
    """Raise InvalidInputError if a request for a step has fields of other requests, or another objective."""
    for field, _ in message.ListFields():
        if field.name not in _OF_SEARCH:
            raise InvalidInputError(f"{field.name} is not for a training step.", field=field.name)
    if message.objective not in (optimizer_pb2.OBJECTIVE_UNSPECIFIED, optimizer_pb2.OBJECTIVE_STEP):
        raise InvalidInputError("a training step needs the objective STEP.", field="objective")


def _configuration(message: step_pb2.StepConfiguration) -> Configuration:
    counts: Mapping[str, int] = {
        name: _count(message, name) or 1
        for name in ("tensor", "pipeline", "data", "expert", "micro_batch", "stages_per_device")
    }
    found = value_of(message, Configuration, **counts)
    if found.zero not in ZERO:
        raise InvalidInputError(f"zero must be 0 to {ZERO[-1]}, not {found.zero}.", field="zero")
    if found.host_s_per_layer is not None and not 0.0 <= found.host_s_per_layer <= MAX_COUNT:
        raise InvalidInputError("host_s_per_layer must be zero or more.", field="host_s_per_layer")
    return found


def _layers(message: step_pb2.RankLayers) -> Layers:
    none, attention, full = (_count(message, kind) for kind in RECOMPUTE)
    return none, attention, full


def _count(message: Message, name: str) -> int:
    """A field that counts, or a switch."""
    value: int = getattr(message, name)
    if not 0 <= value <= MAX_COUNT:
        raise InvalidInputError(f"{name} must be 0 to {MAX_COUNT}, not {value}.", field=name)
    return value
