"""Importers find the states of a model, and name the inputs that look like one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import networkx as nx
import pytest

import go_opt
from go_opt import Graph, from_jax, from_onnx, from_stablehlo
from go_opt.errors import ModelError
from go_opt.frontends.networkx_frontend import from_networkx, from_node_link, to_networkx
from go_opt.frontends.onnx_frontend import import_onnx
from go_opt.frontends.recording.states import Facts, find_states
from go_opt.model.bindings import Bindings
from go_opt.model.codecs.graph_json import graph_from_dict, graph_to_dict
from tests import onnx_steps
from tests.frontends.state_models import FOUND, GIVEN, NOT_STATE, StateModel
from tests.torch_programs import FOLDER


def _imported(case: StateModel, given: dict[str, str]) -> tuple[Graph, dict[str, str]]:
    """The graph of a model, and its pairs in the model's own names."""
    bindings = Bindings.of(case.dims, states=given)
    graph, lowered = import_onnx(case.proto, bindings, "native")
    found = lowered.states(bindings).states
    assert {graph.tensor_names[state.read] for state in graph.states} == {state.read for state in found}
    return graph, {state.read: state.next for state in found}


def _given(case: StateModel) -> dict[str, str]:
    return dict(pattern.split("=") for pattern in case.patterns)


@pytest.mark.parametrize("case", [*FOUND, *NOT_STATE], ids=str)
def test_names_say_which_tensors_are_states(case: StateModel) -> None:
    graph, pairs = _imported(case, {})
    assert pairs == case.pairs
    assert set(graph.unpaired_states) == case.unpaired
    assert {state.scope for state in graph.states} <= {"sequence"}


@pytest.mark.parametrize("case", GIVEN, ids=str)
def test_pairs_may_be_given(case: StateModel) -> None:
    before = from_onnx(case.proto)
    assert set(before.unpaired_states) == case.unpaired
    graph, pairs = _imported(case, _given(case))
    assert pairs == case.pairs
    assert {state.scope for state in graph.states} == {case.scope}
    assert dict(graph.bindings.states) == _given(case)


@pytest.mark.parametrize("case", [*FOUND, *GIVEN], ids=str)
def test_files_keep_states(case: StateModel) -> None:
    graph, _ = _imported(case, _given(case))
    node_link = json.loads(json.dumps(nx.node_link_data(to_networkx(graph), edges="links")))
    as_json = json.loads(json.dumps(graph_to_dict(graph)))
    for other in (from_networkx(to_networkx(graph)), from_node_link(node_link), graph_from_dict(as_json)):
        assert other.fingerprint == graph.fingerprint
        assert (other.states, other.unpaired_states) == (graph.states, graph.unpaired_states)


def test_states_may_be_left_out() -> None:
    case = FOUND[0]
    graph = from_onnx(case.proto, states={"*": ""})
    assert graph.states == ()
    assert set(graph.unpaired_states) == set(case.pairs)
    assert graph.tensor_is_output.sum() == 1 + len(case.pairs)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"past_0": "present.0.key"}, "has no input 'past_0'"),
        ({"past_key_values.0.key": "presents"}, "has no output 'presents'"),
    ],
)
def test_a_wrong_pair_is_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        from_onnx(FOUND[0].proto, states=given)


def _states(graph: Graph) -> dict[str, tuple[str, str, bool, int]]:
    """Each state with its next value, scope, and how it is written: in place, and how many elements."""
    names = graph.tensor_names
    return {
        names[state.read]: (names[state.next], state.scope, state.in_place, state.written)
        for state in graph.states
    }


def _outputs(graph: Graph) -> list[str]:
    return [name for name, is_out in zip(graph.tensor_names, graph.tensor_is_output, strict=True) if is_out]


def test_an_exported_program_says_what_it_writes_to() -> None:
    """Also in the body of ``no_grad``, and through views and results of earlier writes."""
    graph = go_opt.load(FOLDER / "step.pt2")
    assert _states(graph) == {
        "k_cache": ("index_copy", "sequence", True, 8),  # a value of the model, but called a cache
        "values": ("copy", "sequence", True, 8),  # no value of the model
        "running_mean": ("add", "model", False, 8),
        "past_key_values_0_0": ("cat", "sequence", True, 8),
        "past_key_values_0_1": ("cat_1", "sequence", True, 8),
        "h": ("add_1", "sequence", False, 8),
    }
    assert graph.unpaired_states == ("x",)
    assert _outputs(graph) == ["mul", "mul_2"]  # the caller sees what becomes of x


def test_states_of_a_program_are_given_by_name() -> None:
    given = {"k_*": "k_*:model", "running_mean": "", "past_key_values_0_*": "past_key_values_0_*:model"}
    graph = go_opt.load(FOLDER / "step.pt2", states=given)
    scopes = {name: scope for name, (_, scope, _, _) in _states(graph).items()}
    assert scopes == {
        "k_cache": "model", "values": "sequence", "h": "sequence",
        "past_key_values_0_0": "model", "past_key_values_0_1": "model",
    }  # fmt: skip
    assert set(graph.unpaired_states) == {"running_mean", "x"}
    assert _outputs(graph) == ["mul", "add", "mul_2"]
    left = go_opt.load(FOLDER / "step.pt2", states={"*": ""})
    new_values = {"mul", "add", "index_copy", "copy", "add_1", "cat", "cat_1"}
    assert (left.states, set(_outputs(left))) == ((), {"mul_2"} | new_values)
    with pytest.raises(ModelError, match="has no output 'h_out'"):
        go_opt.load(FOLDER / "step.pt2", states={"h": "h_out"})


def test_an_onnx_training_step_leaves_weights_and_moments_anew() -> None:
    """Initializers, and outputs with their names and ``next``; a pattern says the same."""
    proto = onnx_steps.mlp(8, 6, 12, 5)
    found = _states(graph := from_onnx(proto))
    layers = [f"{kind}{layer}{moment}" for kind in "wb" for layer in (0, 1) for moment in ("", ".1", ".2")]
    assert set(found) == set(layers)
    assert {scope for _, scope, _, _ in found.values()} == {"model"}
    assert graph.tensor_names[graph.states[0].next] == "Sub.35"
    assert "Mul.24" in graph.op_names  # of a moment and a number: no constant, since the moment changes
    assert (_outputs(graph), graph.unpaired_states) == (["Mul.8"], ())
    assert _states(from_onnx(proto, states=onnx_steps.STATES)) == found
    assert from_onnx(proto, states={"*": ""}).states == ()
    names = "w_new", "w_next", "v_new", "u_2", "x_new", "new_a_y", "z_new"
    outputs = {name: Facts((2,), "float32") for name in names}
    weights = {"w": (2,), "v": (3,), "u": (2,), "x": (2,), "a.y": (2,), "z": (2,), "Z": (2,)}
    states = find_states({}, outputs, {}, weights.__contains__, weights=weights).states
    assert states == (("x", "x_new", "model"), ("a.y", "new_a_y", "model"))


@pytest.mark.parametrize("name", ["joint_mlp", "joint_transformer"])
def test_a_torch_program_with_its_gradients(name: str) -> None:
    """Each parameter is updated by its gradient, by an op that the program does not have."""
    graph = go_opt.load(FOLDER / f"{name}.pt2")
    found = _states(graph)
    assert {each: row[:2] for each, row in found.items()} == {
        each: (f"{each}.update", "model") for each in found
    }
    assert len(found) == {"joint_mlp": 4, "joint_transformer": 13}[name]
    assert (_outputs(graph), graph.unknown_ops) == (["div" if name == "joint_mlp" else "div_1"], ())
    assert all(graph.rule_of(op) is not None for op in range(graph.num_ops))


def _shape(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)  # type: ignore[no-untyped-call]


def decode(params: Any, cache: Any, x: jax.Array, place: jax.Array) -> Any:
    keys = jax.lax.dynamic_update_slice(cache["k"], x @ params["w"], (place, 0))
    values = cache["v"].at[place].set(x[0])
    return (keys * values).sum(0), {"k": keys, "v": values}


def train(params: Any, moments: Any, x: jax.Array) -> Any:
    gradients = jax.grad(lambda params: ((x @ params["w"] + params["b"]) ** 2).sum())(params)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, gradients)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, moments), moments


CACHE = {"k": _shape(16, 8), "v": _shape(16, 8)}
DECODE = ({"w": _shape(8, 8)}, CACHE, _shape(1, 8), _shape(dtype=jnp.int32))
PARAMS = {"b": _shape(4), "w": _shape(8, 4)}
TRAIN = (PARAMS, PARAMS, _shape(2, 8))
DECODED = {
    "cache['k']": ("dynamic_update_slice", "sequence", True, 8),
    "cache['v']": ("scatter", "sequence", True, 8),
}
TRAINED = {
    "params['b']": ("sub", "model", False, 4),
    "params['w']": ("sub_1", "model", False, 32),
    "moments['b']": ("add_1", "model", False, 4),
    "moments['w']": ("add_2", "model", False, 32),
}


def test_arguments_that_become_results() -> None:
    decoding = from_jax(decode, *DECODE, state={1: 1})
    assert _states(decoding) == DECODED
    assert _outputs(decoding) == ["reduce_sum"]
    assert decoding.unpaired_states == ()
    assert _states(from_jax(train, *TRAIN, state={0: 0, 1: (1, "model")})) == TRAINED
    by_path = from_jax(decode, *DECODE, state={"cache[*": "result[1][*:model"})
    assert {scope for _, scope, _, _ in _states(by_path).values()} == {"model"}


def named(params: Any, cache: Any, x: jax.Array, place: jax.Array) -> Any:
    return dict(zip(("y", "cache"), decode(params, cache, x, place), strict=True))


def test_results_with_the_names_of_arguments() -> None:
    assert _states(from_jax(named, *DECODE)) == DECODED
    text = jax.jit(named).lower(*DECODE).as_text(debug_info=True)
    assert _states(from_stablehlo(text)) == DECODED
    unnamed = lambda *args: named(*args)  # noqa: E731
    assert set(from_jax(unnamed, *DECODE).unpaired_states) == {"arg1['k']", "arg1['v']"}
    assert len(from_jax(unnamed, *DECODE, state={1: "cache"}).states) == 2


def test_containers_that_come_back_look_like_states() -> None:
    assert set(from_jax(decode, *DECODE).unpaired_states) == {"cache['k']", "cache['v']"}
    assert set(from_jax(train, *TRAIN).unpaired_states) == set(TRAINED)
    assert from_jax(lambda params, x: x @ params["w"], PARAMS, _shape(2, 8)).unpaired_states == ()


def test_a_state_gets_the_value_of_an_input_by_a_copy() -> None:
    graph = from_jax(lambda a, b, x: (a + x, a, x), *[_shape(4)] * 3, state={0: 0, 1: 1})
    assert _states(graph)["b"] == ("copy of a to b", "sequence", False, 4)
    assert _states(graph)["a"][2:] == (False, 4)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({1: 2}, "state 1: there is no result 2; there are 0, 1"),
        ({4: 1}, "state 4: there is no argument 4 among 4"),
        ({1: (1, "package")}, "scope must be 'sequence' or 'model', not 'package'"),
        ({1: 0}, r"state 1: argument 1 has 2 arrays, and result 0 has 1"),
        ({2: 0}, r"state 2: 'x' of float32 \[1, 8\] cannot become 'result\[0\]' of float32 \[8\]"),
        ({"caches": "result"}, "has no input 'caches'"),
    ],
)
def test_wrong_positions_are_named(state: Mapping[Any, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        from_jax(decode, *DECODE, state=state)


def test_buffers_that_become_results() -> None:
    text = jax.jit(decode, donate_argnums=1).lower(*DECODE).as_text(debug_info=True)
    assert _states(from_stablehlo(text)) == DECODED
    donated = text.replace("tf.aliasing_output = 1 : i32", "jax.buffer_donor = true")
    donated = donated.replace("tf.aliasing_output = 2 : i32", "jax.buffer_donor = true")
    assert donated.count("buffer_donor") == 2
    assert _states(from_stablehlo(donated)) == DECODED
    undone = from_stablehlo(text, states={"*": ""})
    assert (undone.states, set(undone.unpaired_states)) == ((), set(DECODED))
    given = from_stablehlo(text, states={"cache['k']": "result[1]['k']:model"})
    assert _states(given)["cache['k']"][1] == "model"
    training = jax.jit(train, donate_argnums=(0, 1)).lower(*TRAIN).as_text(debug_info=True)
    assert _states(from_stablehlo(training)) == TRAINED


def test_aliases_of_a_module() -> None:
    alias = "{parameter_index = array<i64>, parameter_number = 0 : i64}"
    row = f"{{alias = {alias}, output_index = array<i64: 1>}}"
    text = f"""module attributes {{mhlo.input_output_alias = [{row}]}} {{
      func.func @main(%a: tensor<8xf32> loc("a"), %b: tensor<8xf32> loc("b"))
          -> (tensor<8xf32>, tensor<8xf32>) {{
        %0 = stablehlo.multiply %a, %b : tensor<8xf32>
        %1 = stablehlo.add %a, %b : tensor<8xf32>
        return %0, %1 : tensor<8xf32>, tensor<8xf32>
      }}
    }}"""
    graph = from_stablehlo(text)
    assert _states(graph) == {"a": ("add", "sequence", False, 8)}
    assert _states(from_stablehlo(text, states={"b": "result[0]"}))["b"][:2] == ("mul", "sequence")
