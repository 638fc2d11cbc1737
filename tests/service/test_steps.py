"""Training steps over the wire: the same plans, costs and errors as in process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from go_opt import LocalClient
from go_opt.env import load_target
from go_opt.errors import InfeasibleError, InvalidInputError
from go_opt.parallel import Case, Step, cost_step, plan_step
from go_opt.parallel.plans.answers import StepAnswer
from go_opt.parallel.wire.steps import case_to_proto, plan_to_proto, step_from_proto
from go_opt.proto import optimizer_pb2, step_pb2
from go_opt.service.calls.calls import Stop
from go_opt.service.workers.optimizer import LocalOptimizer, PlanQuery, SearchControl

MODEL = "gpt:hidden=1024,layers=10,heads=16,sequence=1024,kv_heads=4,gated=on"
TARGET, BATCH = "dgx-a100-8", 32


def case() -> Case:
    return Case.read(MODEL, load_target(TARGET), BATCH)


@pytest.fixture(scope="module")
def client() -> Iterator[LocalClient]:
    with LocalClient() as found:
        yield found


def test_the_same_plan_as_in_process(client: LocalClient) -> None:
    found, own = client.optimize_step(MODEL, TARGET, BATCH), plan_step(case())
    assert found.choices == own.choices
    assert found.lower_bound_s == own.lower_bound_s
    assert (found.configurations, found.solved, found.is_complete) == (own.configurations, own.solved, True)


@pytest.mark.parametrize(
    "text",
    [
        "data=8,zero=2,overlap=on",
        "tensor=2,pipeline=4,schedule=gpipe,recompute=none,sequence_parallel=on",
        "pipeline=2,data=4,schedule=interleaved,stages_per_device=2,recompute=attention,host_s_per_layer=0.0",
    ],
)
def test_costs_and_explanations_of_a_configuration(client: LocalClient, text: str) -> None:
    step = cost_step(case(), text)
    assert step_from_proto(plan_to_proto(step), step.case) == step
    own = StepAnswer(step, MODEL).explanation()
    costs = client.evaluate_step(TARGET, step)
    assert {name: own[name] for name in costs} == costs
    explained = client.explain_step(TARGET, step)
    assert explained["gains"] == own["gains"]
    assert explained["step_s"] == own["step_s"]


def test_a_plan_without_layers_is_divided_evenly() -> None:
    message = plan_to_proto(cost_step(case(), "pipeline=4,data=2"))
    del message.layers[:]
    assert step_from_proto(message, case()) == cost_step(case(), "pipeline=4,data=2")


def request(kind: Any, step: Step | None = None, **fields: Any) -> Any:
    message = kind(step=case_to_proto(case()), target={"name": TARGET}, **fields)
    if step is not None:
        message.step_plan.CopyFrom(plan_to_proto(step))
    return message


def test_what_a_plan_breaks() -> None:
    fitting, large = (
        cost_step(case(), "data=8"),
        Case.read(MODEL.replace("1024", "16384"), load_target(TARGET), 8),
    )
    ask = LocalOptimizer()
    message = request(optimizer_pb2.VerifyRequest, fitting)
    assert not ask.inspect("verify", message.SerializeToString(), stop=Stop()).violations
    message = request(optimizer_pb2.VerifyRequest, cost_step(large, "data=8"))
    message.step.CopyFrom(case_to_proto(large))
    (found,) = ask.inspect("verify", message.SerializeToString(), stop=Stop()).violations
    assert found.constraint == "memory"


def _search(change: Callable[[Any], Any]) -> tuple[PlanQuery | None, Any]:
    message = request(optimizer_pb2.OptimizeRequest)
    change(message)
    return None, message


def _evaluation(change: Callable[[Any], Any]) -> tuple[PlanQuery | None, Any]:
    message = request(optimizer_pb2.EvaluateRequest, cost_step(case(), "pipeline=4,data=2"))
    change(message)
    return "evaluate", message


@pytest.mark.parametrize(
    ("asked", "field", "problem"),
    [
        (
            _search(lambda m: m.step.model.ClearField("hidden")),
            "step.model.hidden",
            "hidden must be 1 or more",
        ),
        (_search(lambda m: setattr(m.step.model, "heads", 7)), "step.model.heads", "heads=7 does not divide"),
        (_search(lambda m: setattr(m.step.model, "layers", -1)), "step.model.layers", "layers must be 0 to"),
        (_search(lambda m: m.step.ClearField("batch")), "step.batch", "batch must be 1 or more"),
        (_search(lambda m: setattr(m, "objective", 1)), "objective", "needs the objective STEP"),
        (_search(lambda m: setattr(m, "seed", 4)), "seed", "seed is not for a training step"),
        (_search(lambda m: setattr(m, "budget_s", -1.0)), "budget_s", "budget must be above zero"),
        (_search(lambda m: setattr(m.graph, "name", "x")), "step", "a graph or a training step, not both"),
        (_search(lambda m: setattr(m.target, "name", "mcm-6x6")), "target", "has no levels"),
        (
            _evaluation(lambda m: setattr(m.step_plan.configuration, "data", 3)),
            "step_plan.configuration.tensor",
            "is 12 devices of 8",
        ),
        (
            _evaluation(lambda m: setattr(m.step_plan.configuration, "zero", 4)),
            "step_plan.configuration.zero",
            "0 to 3",
        ),
        (
            _evaluation(lambda m: setattr(m.step_plan.configuration, "recompute", 9)),
            "step_plan.configuration.recompute",
            "no number of its enum",
        ),
        (_evaluation(lambda m: m.step_plan.layers.pop()), "step_plan.layers", "layers"),
        (_evaluation(lambda m: setattr(m.step_plan.layers[0], "full", 9)), "step_plan.layers", "ranks have"),
    ],
)
def test_requests_that_are_wrong(asked: tuple[PlanQuery | None, Any], field: str, problem: str) -> None:
    query, message = asked
    data, ask = message.SerializeToString(), LocalOptimizer()
    with pytest.raises(InvalidInputError, match=problem) as raised:
        _ = ask.inspect(query, data, stop=Stop()) if query else ask.optimize(data, SearchControl())
    assert raised.value.field == field


def test_nothing_fits(client: LocalClient) -> None:
    with pytest.raises(InfeasibleError, match="no configuration fits") as raised:
        client.optimize_step("gpt:hidden=12288,layers=96,heads=96,sequence=2048", TARGET, 8)
    assert raised.value.is_proven


def test_every_size_and_choice_has_a_field() -> None:
    assert {field.name for field in step_pb2.Transformer.DESCRIPTOR.fields} == set(vars(case().model))
    chosen = cost_step(case(), "data=8").chosen
    assert {field.name for field in step_pb2.StepConfiguration.DESCRIPTOR.fields} == set(vars(chosen))
