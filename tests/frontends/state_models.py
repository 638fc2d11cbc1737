"""Tiny ONNX models with state, in the names of many exporters, each with the pairs that should be found.

In ``FOUND`` the pairs follow from names and shapes, in ``GIVEN`` only patterns say them, and in
``NOT_STATE`` there are inputs that look like a state and are none.

Shapes: keys and values ``[1, HEADS, PAST, WIDTH]``, hidden states ``[1, HIDDEN]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

import onnx
from onnx import TensorProto, helper

from tests.exports import BOOL, FLOAT, INT64, info, integers, model, node, weight

HEADS, PAST, WIDTH = 2, 6, 4
HIDDEN: Final = HEADS * WIDTH
FLOAT16: Final = TensorProto.FLOAT16

Shape = Sequence[int | str]
Parts = tuple[list[onnx.NodeProto], list[onnx.ValueInfoProto], list[onnx.TensorProto]]
# From a state's input, its new row and its output: the nodes between them, other inputs, constants.
Write = Callable[[str, str, str], Parts]


@dataclass(frozen=True)
class StateModel:
    """A model, and which of its inputs and outputs are one state."""

    name: str
    proto: onnx.ModelProto
    pairs: Mapping[str, str]  # input -> the output that is its next value
    patterns: tuple[str, ...] = ()  # ``read=next``: give the pairs where names do not say them
    scope: str = "sequence"
    unpaired: frozenset[str] = frozenset()  # inputs that look like a state, to be named on the screen
    dims: Mapping[str, int] = field(default_factory=dict)  # to bind

    def __str__(self) -> str:
        return self.name


def appended(past: str, new: str, present: str) -> Parts:
    """The next value is one row longer."""
    return [node("Concat", f"{past} {new}", present, axis=2)], [], []


def rolled(past: str, new: str, present: str) -> Parts:
    """The oldest row leaves."""
    nodes = [
        node("Slice", f"{past} one end rows", f"{past}/kept"),
        node("Concat", f"{past}/kept {new}", present, axis=2),
    ]
    return nodes, [], [integers("one", 1), integers("end", PAST), integers("rows", 2)]


def scattered(past: str, new: str, present: str) -> Parts:
    """A row of a cache of fixed length is written, at a position that is an input."""
    nodes = [
        node("Transpose", past, f"{past}/rows", perm=[2, 0, 1, 3]),
        node("Transpose", new, f"{past}/row", perm=[2, 0, 1, 3]),
        node("Unsqueeze", "cache_position last", f"{past}/place"),
        node("ScatterND", f"{past}/rows {past}/place {past}/row", f"{past}/written"),
        node("Transpose", f"{past}/written", present, perm=[1, 2, 0, 3]),
    ]
    return nodes, [info("cache_position", [1], INT64)], [integers("last", -1)]


def scattered_elements(past: str, new: str, present: str) -> Parts:
    """As :func:`scattered`, with a position for each element."""
    nodes = [
        node("Expand", "cache_position sizes", f"{past}/places"),
        node("ScatterElements", f"{past} {past}/places {new}", present, axis=2),
    ]
    return nodes, [info("cache_position", [1], INT64)], [integers("sizes", 1, HEADS, 1, WIDTH)]


def masked(past: str, new: str, present: str) -> Parts:
    """The whole cache is written again, with the new row where a mask says."""
    return [node("Where", f"is_new {new} {past}", present)], [info("is_new", [PAST, 1], BOOL)], []


def tensor_scattered(past: str, new: str, present: str) -> Parts:
    """By ONNX's op for caches of fixed length."""
    nodes = [node("TensorScatter", f"{past} {new} write_indices", present, axis=2)]
    return nodes, [info("write_indices", [1], INT64)], []


def reordered(past: str, new: str, present: str) -> Parts:
    """Beam search: the batch's sequences are chosen anew, then a row is appended."""
    nodes = [
        node("Gather", f"{past} beam_idx", f"{past}/chosen", axis=0),
        node("Concat", f"{past}/chosen {new}", present, axis=2),
    ]
    return nodes, [info("beam_idx", [1], INT64)], []


def attention(
    *layers: Sequence[tuple[str, str]],
    write: Write = appended,
    longer: int | str | None = None,
    batch: int | str = 1,
    past: int | str = PAST,
    tokens: int = 1,
    opset: int = 20,
) -> onnx.ModelProto:
    """Self-attention of new tokens behind ``past``: a layer is the pairs of its key and its value.

    ``longer`` is how long the next values are.
    """
    grown = longer or (past + tokens if write in (appended, reordered) and isinstance(past, int) else past)
    token = [batch, tokens, HIDDEN]
    inputs, outputs = {"x": info("x", token)}, []
    weights = {"apart": integers("apart", 0, 0, HEADS, WIDTH), "flat": integers("flat", 0, 0, HIDDEN)}
    nodes: list[onnx.NodeProto] = []
    read = "x"
    for i, states in enumerate(layers):
        for part in "qkv":
            weights[f"w{part}{i}"] = weight(f"w{part}{i}", HIDDEN, HIDDEN)
            nodes += [
                node("MatMul", f"{read} w{part}{i}", f"{part}{i}_flat"),
                node("Reshape", f"{part}{i}_flat apart", f"{part}{i}_apart"),
                node("Transpose", f"{part}{i}_apart", f"{part}{i}_new", perm=[0, 2, 1, 3]),
            ]
        for (state, following), new in zip(states, (f"k{i}_new", f"v{i}_new"), strict=True):
            more, besides, constants = write(state, new, following)
            nodes += more
            inputs[state] = info(state, [batch, HEADS, past, WIDTH])
            inputs |= {one.name: one for one in besides}
            weights |= {one.name: one for one in constants}
            outputs.append(info(following, [batch, HEADS, grown, WIDTH]))
        (_, key), (_, value) = states
        nodes += _read(f"q{i}_new", key, value, f"y{i}")
        read = f"y{i}"
    return model(nodes, [*inputs.values()], [info(read, token), *outputs], [*weights.values()], opset=opset)


def _read(query: str, key: str, value: str, result: str) -> list[onnx.NodeProto]:
    """What the query's heads read from keys and values."""
    return [
        node("Transpose", key, f"{result}_key", perm=[0, 1, 3, 2]),
        node("MatMul", f"{query} {result}_key", f"{result}_scores"),
        node("Softmax", f"{result}_scores", f"{result}_shares", axis=-1),
        node("MatMul", f"{result}_shares {value}", f"{result}_heads"),
        node("Transpose", f"{result}_heads", f"{result}_tokens", perm=[0, 2, 1, 3]),
        node("Reshape", f"{result}_tokens flat", result),
    ]


def recurrent(*pairs: tuple[str, str], elem_type: int = FLOAT) -> onnx.ModelProto:
    """A cell for each hidden state, each behind the one before."""
    nodes, inputs, outputs, weights = [], [info("x", [1, HIDDEN])], [], []
    read = "x"
    for i, (state, following) in enumerate(pairs):
        weights += [weight(f"a{i}", HIDDEN, HIDDEN), weight(f"b{i}", HIDDEN, HIDDEN)]
        nodes += [
            node("Cast", state, f"state{i}_read", to=FLOAT),
            node("MatMul", f"{read} a{i}", f"in{i}"),
            node("MatMul", f"state{i}_read b{i}", f"kept{i}"),
            node("Add", f"in{i} kept{i}", f"sum{i}"),
            node("Tanh", f"sum{i}", f"hidden{i}"),
            node("Cast", f"hidden{i}", following, to=elem_type),
        ]
        inputs.append(info(state, [1, HIDDEN], elem_type))
        outputs.append(info(following, [1, HIDDEN], elem_type))
        read = f"hidden{i}"
    nodes.append(node("Sigmoid", read, "y"))
    return model(nodes, inputs, [info("y", [1, HIDDEN]), *outputs], weights)


def lstm(*pairs: tuple[str, str]) -> onnx.ModelProto:
    """ONNX's own cell, its hidden state and its cell state [1, 1, HIDDEN]."""
    (hidden, next_hidden), (cell, next_cell) = pairs
    nodes = [node("LSTM", f"x w r - - {hidden} {cell}", f"y {next_hidden} {next_cell}", hidden_size=HIDDEN)]
    states = [info(name, [1, 1, HIDDEN]) for name in (hidden, cell, next_hidden, next_cell)]
    weights = [weight("w", 1, 4 * HIDDEN, HIDDEN), weight("r", 1, 4 * HIDDEN, HIDDEN)]
    inputs, outputs = [info("x", [1, 1, HIDDEN])], [info("y", [1, 1, 1, HIDDEN])]
    return model(nodes, inputs + states[:2], outputs + states[2:], weights)


def grouped(*pairs: tuple[str, str]) -> onnx.ModelProto:
    """ONNX Runtime's attention with buffers of fixed length for keys and values of one head."""
    (key, next_key), (value, next_value) = pairs
    lengths = ("seqlens_k", "total_sequence_length")
    attend = helper.make_node(
        "GroupQueryAttention", ["q", "k", "v", key, value, *lengths], ["y", next_key, next_value],
        domain="com.microsoft", num_heads=HEADS, kv_num_heads=1,
    )  # fmt: skip
    nodes = [*(node("MatMul", f"x w{part}", part) for part in "qkv"), attend]
    shapes = {"q": HIDDEN, "k": WIDTH, "v": WIDTH}
    inputs = [
        info("x", [1, 1, HIDDEN]),
        *(info(name, [1, 1, PAST, WIDTH]) for name in (key, value)),
        info("seqlens_k", [1], TensorProto.INT32),
        info("total_sequence_length", [], TensorProto.INT32),
    ]
    outputs = [
        info("y", [1, 1, HIDDEN]),
        *(info(name, [1, 1, PAST, WIDTH]) for name in (next_key, next_value)),
    ]
    proto = model(nodes, inputs, outputs, [weight(f"w{part}", HIDDEN, shapes[part]) for part in "qkv"])
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return proto


def onnx_attention(*pairs: tuple[str, str]) -> onnx.ModelProto:
    """ONNX's attention, which appends to keys and values itself."""
    (key, next_key), (value, next_value) = pairs
    nodes = [
        *(node("MatMul", f"x w{part}", part) for part in "qkv"),
        node("Attention", f"q k v - {key} {value}", f"y {next_key} {next_value}",
             q_num_heads=HEADS, kv_num_heads=HEADS),
    ]  # fmt: skip
    kept, grown = [1, HEADS, PAST, WIDTH], [1, HEADS, PAST + 1, WIDTH]
    inputs = [info("x", [1, 1, HIDDEN]), info(key, kept), info(value, kept)]
    outputs = [info("y", [1, 1, HIDDEN]), info(next_key, grown), info(next_value, grown)]
    return model(nodes, inputs, outputs, [weight(f"w{part}", HIDDEN, HIDDEN) for part in "qkv"], opset=23)


def crossed(
    self_pairs: Sequence[tuple[str, str]], encoder: Sequence[str], presents: Sequence[str] = ()
) -> onnx.ModelProto:
    """A decoder's layer; it reads the encoder's key and value and gives them on as ``presents``, if any."""
    proto = attention(self_pairs)
    kept = [1, HEADS, 2 * PAST, WIDTH]
    key, value = encoder
    proto.graph.node.extend([
        *_read("y0_heads", key, value, "crossed"),
        *(node("Identity", name, present) for name, present in zip(encoder, presents, strict=False)),
    ])  # fmt: skip
    proto.graph.input.extend(info(name, kept) for name in encoder)
    proto.graph.output.extend([info("crossed", [1, 1, HIDDEN]), *(info(name, kept) for name in presents)])
    return proto


def key_beside_value(read: str, following: str) -> onnx.ModelProto:
    """Key and value in one tensor [2, 1, HEADS, PAST, WIDTH], as of ONNX Runtime's GPT-2."""
    proto = attention([("k", "k_next"), ("v", "v_next")])
    graph = proto.graph
    kept = [info(read, [2, 1, HEADS, PAST, WIDTH])]
    for name in ("k", "v"):
        graph.node.insert(0, node("Gather", f"{read} {name}_place", name, axis=0))
        graph.node.append(node("Unsqueeze", f"{name}_next first", f"{name}_joined"))
    graph.node.append(node("Concat", "k_joined v_joined", following, axis=0))
    del graph.input[1:], graph.output[1:]
    graph.input.extend(kept)
    graph.output.append(info(following, [2, 1, HEADS, PAST + 1, WIDTH]))
    graph.initializer.extend([integers("first", 0), _scalar("k_place", 0), _scalar("v_place", 1)])
    return proto


def _scalar(name: str, value: int) -> onnx.TensorProto:
    return helper.make_tensor(name, INT64, [], [value])


def _names(*patterns: str, layers: Sequence[int] = (0,)) -> list[list[tuple[str, str]]]:
    """The pairs of each layer from patterns ``read=next``, with ``{}`` for the layer's number."""
    texts = [[pattern.format(i, i) for pattern in patterns] for i in layers]
    return [[(read, following) for read, following in (text.split("=") for text in row)] for row in texts]


def _grown(name: str, *patterns: str, layers: Sequence[int] = (0, 1), **options: Any) -> StateModel:
    rows = _names(*patterns, layers=layers)
    return StateModel(name, attention(*rows, **options), dict(pair for row in rows for pair in row))


def _carried(name: str, *pairs: str, elem_type: int = FLOAT) -> StateModel:
    """Hidden states ``read=next``."""
    (row,) = _names(*pairs)
    return StateModel(name, recurrent(*row, elem_type=elem_type), dict(row))


def _crossed(name: str, own: Sequence[str], encoder: Sequence[str]) -> StateModel:
    """Self-attention's pairs ``read=next``; the encoder's are pairs, or names of inputs alone."""
    (pairs,) = _names(*own)
    alone = [text.partition("=")[0] for text in encoder]
    presents = [text.partition("=")[2] for text in encoder if "=" in text]
    found = dict(pairs) | dict(zip(alone, presents, strict=False))
    return StateModel(name, crossed(pairs, alone, presents), found, unpaired=frozenset(alone) - found.keys())


def _by_op(name: str, build: Callable[..., onnx.ModelProto], *pairs: str) -> StateModel:
    (row,) = _names(*pairs)
    return StateModel(name, build(*row), dict(row))


def _dynamic(name: str, longer: str, past: str = "past_sequence_length") -> StateModel:
    """Open sizes: those of the next values follow from the others, whatever they are called."""
    rows = _names("past_key_values.{}.key=present.{}.key", "past_key_values.{}.value=present.{}.value")
    proto = attention(*rows, batch="batch_size", past=past, longer=longer)
    return StateModel(name, proto, dict(rows[0]), dims={"batch_size": 1, past: PAST})


OPTIMUM: Final = ("past_key_values.{}.key=present.{}.key", "past_key_values.{}.value=present.{}.value")

_KEYS_AND_VALUES: Final = (
    _grown("optimum", *OPTIMUM),
    _grown("optimum, twelve layers", *OPTIMUM, layers=range(12)),
    _grown("numbers that do not begin at 0", *OPTIMUM, layers=(3, 4, 30)),
    _grown("genai", "past_key_{}=present_key_{}", "past_value_{}=present_value_{}", layers=range(11)),
    _grown("genai, words", "past_key_values.{}.key=present_key_values.{}.key",
           "past_key_values.{}.value=present_key_values.{}.value"),
    _grown("cache_k_0_out", "cache_k_{}=cache_k_{}_out", "cache_v_{}=cache_v_{}_out"),
    _grown("past_key_0_in, past_key_0_out", "past_key_{}_in=past_key_{}_out",
           "past_value_{}_in=past_value_{}_out"),
    _grown("in_cache, out_cache", "in_k_cache{}=out_k_cache{}", "in_v_cache{}=out_v_cache{}"),
    _grown("new_cached", "cached_key_{}=new_cached_key_{}", "cached_val_{}=new_cached_val_{}"),
    _grown("updated", "layers.{}.k_cache=updated_layers.{}.k_cache",
           "layers.{}.v_cache=updated_layers.{}.v_cache"),
    _grown("input_, output_", "input_past_key_{}=output_past_key_{}",
           "input_past_value_{}=output_past_value_{}"),
    _grown("capitals", "Past_Key_{}=Present_Key_{}", "Past_Value_{}=Present_Value_{}"),
    _grown("slashes", "/past/{}/key=/present/{}/key", "/past/{}/value=/present/{}/value"),
    _grown("past and present of pytrees", "past_{}_0=present_{}_0", "past_{}_1=present_{}_1"),
    _grown("several tokens", *OPTIMUM, tokens=4),
    *(_grown(write.__name__, *OPTIMUM, write=write)
      for write in (rolled, scattered, scattered_elements, masked, reordered)),
    _grown("tensor_scattered", *OPTIMUM, write=tensor_scattered, opset=24),
    StateModel("key beside value", key_beside_value("past_0", "present_0"), {"past_0": "present_0"}),
    _by_op("grouped attention", grouped, *(text.format(0, 0) for text in OPTIMUM)),
    _by_op("ONNX's attention", onnx_attention, *(text.format(0, 0) for text in OPTIMUM)),
    _dynamic("past + 1", "past_sequence_length + 1"),
    _dynamic("total length", "total_sequence_length"),
    _dynamic("one name for both", "past_sequence_length"),
)  # fmt: skip

_DECODERS: Final = (
    _crossed("merged decoder", [text.replace("{}.", "{}.decoder.") for text in OPTIMUM],
             [f"past_key_values.0.encoder.{part}=present.0.encoder.{part}" for part in ("key", "value")]),
    _crossed("decoder with past", [text.replace("{}.", "{}.decoder.") for text in OPTIMUM],
             [f"past_key_values.0.encoder.{part}" for part in ("key", "value")]),
    _crossed("self and cross",
             [f"past_{part}_self_{{}}=present_{part}_self_{{}}" for part in ("key", "value")],
             ["past_key_cross_0", "past_value_cross_0"]),
)  # fmt: skip

_RECURRENT: Final = (
    _carried("state, stateN", "state=stateN"),
    _carried("h, hn", "h=hn", "c=cn"),
    _carried("h0, hn", "h0=hn", "c0=cn"),
    _carried("next_h", "h=next_h", "c=next_c"),
    _carried("h_in, h_out", "h_in=h_out", "c_in=c_out"),
    _carried("prev, next", "prev_h=next_h", "prev_c=next_c"),
    _carried("previous, new", "previous_state_h=new_state_h", "previous_state_c=new_state_c"),
    _carried("numbered, next", "state0=next_state0", "state1=next_state1"),
    _carried("input_states_1", "input_states_1=output_states_1", "input_states_2=output_states_2"),
    _carried("hidden_in", "hidden_in=hidden_out"),
    _carried("state_in", "state_in=state_out"),
    _carried("state, state_out", "state=state_out"),
    _carried("state, new_state", "state=new_state"),
    _carried("old, new", "old_state=new_state"),
    _carried("cache_out", "conv_cache=conv_cache_out", "tra_cache=tra_cache_out",
             "inter_cache=inter_cache_out"),
    _carried("in_cache0", "in_cache0=out_cache0", "in_cache1=out_cache1"),
    _carried("cache, next at the end", "cache_last_channel=cache_last_channel_next",
             "cache_last_time=cache_last_time_next"),
    _carried("next in the middle", "cache_last_channel_len=cache_last_channel_next_len"),
    _carried("r_cache", "att_cache=r_att_cache", "cnn_cache=r_cnn_cache"),
    _carried("memories", "mems_0=new_mems_0", "mems_1=new_mems_1"),
    _carried("state spaces", "past_conv.0=present_conv.0", "past_ssm.0=present_ssm.0",
             "past_conv.1=present_conv.1", "past_ssm.1=present_ssm.1"),
    _carried("half precision", "state=stateN", elem_type=FLOAT16),
    _carried("a count", "processed_lens=new_processed_lens", elem_type=INT64),
    StateModel("LSTM", lstm(("h", "hn"), ("c", "cn")), {"h": "hn", "c": "cn"}),
)  # fmt: skip

# What torch.onnx calls outputs that nobody names: after the op that makes each, or by a number.
_TORCH: Final = ("past_{}_0=cat_{}", "past_{}_1=val_{}")
_CELL: Final = ("hx=getitem_1", "cx=getitem_2")

_BY_OPS: Final = (
    *(_grown(f"torch's names, {write.__name__}", *_TORCH, write=write)
      for write in (appended, rolled, scattered, scattered_elements, masked, reordered)),
    _grown("torch's names, tensor_scattered", *_TORCH, write=tensor_scattered, opset=24),
    _by_op("torch's names, grouped attention", grouped, "past_0=cat_4", "past_1=cat_5"),
    _by_op("torch's names, ONNX's attention", onnx_attention, "input_1=84", "input_2=83"),
    _by_op("torch's names, LSTM", lstm, *_CELL),
)  # fmt: skip

FOUND: Final = (*_KEYS_AND_VALUES, *_DECODERS, *_RECURRENT, *_BY_OPS)


def _given(name: str, proto: onnx.ModelProto, *patterns: str, **more: Any) -> StateModel:
    """``patterns`` as ``read=next``; a star stands for the same text in both."""
    pairs = {}
    for text in patterns:
        read, following = text.split("=")
        ends = [*proto.graph.input, *proto.graph.initializer]
        for tensor in (one.name for one in ends if fnmatchcase(one.name, read)):
            star = (
                tensor[read.find("*") : len(tensor) - len(read) + read.find("*") + 1] if "*" in read else ""
            )
            pairs[tensor] = following.replace("*", star)
    return StateModel(name, proto, pairs, patterns=patterns, **more)


def trained() -> onnx.ModelProto:
    """A step of gradient descent on ``|x w|^2``: the weight has a value in the file."""
    nodes = [
        node("MatMul", "x w", "y"),
        node("Transpose", "x", "turned", perm=[1, 0]),
        node("MatMul", "turned y", "gradient"),
        node("Mul", "gradient rate", "change"),
        node("Sub", "w change", "w_updated"),
    ]
    rate = helper.make_tensor("rate", FLOAT, [], [0.01])
    outputs = [info("y", [4, HIDDEN]), info("w_updated", [HIDDEN, HIDDEN])]
    return model(nodes, [info("x", [4, HIDDEN])], outputs, [weight("w", HIDDEN, HIDDEN), rate])


GIVEN: Final = (
    _given("r1i, r1o", recurrent(("r1i", "r1o"), ("r2i", "r2o")), "r*i=r*o"),
    _given("Identity", recurrent(("input_2", "Identity_1"), ("input_3", "Identity_2")),
           "input_2=Identity_1", "input_3=Identity_2"),
    _given("a cache of the encoder that stays",
           crossed([("past_key_self_0", "present_key_self_0"), ("past_value_self_0", "present_value_self_0")],
                   ["past_key_cross_0", "past_value_cross_0"]),
           "past_*_self_0=present_*_self_0", "past_*_cross_0=past_*_cross_0",
           unpaired=frozenset({"past_key_cross_0", "past_value_cross_0"})),
    _given("a trained weight", trained(), "w=w_updated", scope="model"),
)  # fmt: skip

Facts = Mapping[str, tuple[Shape, int]]  # by tensor: shape and type


def plain(inputs: Facts, outputs: Facts) -> onnx.ModelProto:
    """Each output has one value everywhere, which depends on all inputs."""
    nodes, totals = [], []
    for i, name in enumerate(inputs):
        nodes += [
            node("Cast", name, f"read{i}", to=FLOAT),
            node("ReduceSum", f"read{i}", f"sum{i}", keepdims=0),
        ]
        totals.append(f"sum{i}")
    nodes.append(node("Sum", " ".join(totals), "total"))
    for i, (name, (_, elem_type)) in enumerate(outputs.items()):
        nodes += [node("Expand", f"total shape{i}", f"wide{i}"), node("Cast", f"wide{i}", name, to=elem_type)]
    values = [[info(name, *fact) for name, fact in facts.items()] for facts in (inputs, outputs)]
    shapes = [integers(f"shape{i}", *shape) for i, (shape, _) in enumerate(outputs.values())]
    return model(nodes, *values, shapes)


def coloured(given: int, made: int, *, is_read: bool) -> onnx.ModelProto:
    """An image, behind which a convolution puts channels; ``is_read`` if more is made of both together."""
    channels = given + made
    nodes = [
        node("Conv", "image w", "made", pads=[1] * 4),
        node("Concat", "image made", "both", axis=1),
        node("ReduceMean", "both" if is_read else "made", "mean", keepdims=0),
    ]
    outputs = [info("both", [1, channels, 8, 8]), info("mean", [])]
    return model(nodes, [info("image", [1, given, 8, 8])], outputs, [weight("w", made, given, 3, 3)])


def _never(name: str, reads: Facts, gives: Facts, *unpaired: str) -> StateModel:
    return StateModel(name, plain(reads, gives), {}, unpaired=frozenset(unpaired))


def _floats(*names: str, shape: Shape = (1, HIDDEN), elem_type: int = FLOAT) -> Facts:
    return dict.fromkeys(names, (shape, elem_type))


_PAST, _PRESENT = "past_key_values.0.key", "present.0.key"

NOT_STATE: Final = (
    _never("no counterpart", _floats("x", _PAST), _floats("y", "present.1.key"), _PAST),
    _never("no state behind a prefill", _floats("x"), _floats("y", _PRESENT)),
    _never(
        "two sizes differ",
        _floats("x", _PAST, shape=(1, 2, 6, 4)),
        _floats(_PRESENT, shape=(1, 2, 7, 8)),
        _PAST,
    ),
    _never(
        "ranks differ", _floats("x", _PAST, shape=(1, 2, 6, 4)), _floats(_PRESENT, shape=(2, 7, 4)), _PAST
    ),
    _never("types differ", _floats("x", _PAST), _floats(_PRESENT, elem_type=FLOAT16), _PAST),
    _never("kinds of number differ", _floats("x", "state"), _floats("stateN", elem_type=INT64), "state"),
    _never("two next values", _floats("x", "state"), _floats("state_out", "new_state"), "state"),
    _never(
        "two last values", _floats("x", "state", "prev_state"), _floats("next_state"), "state", "prev_state"
    ),
    _never("key and value", _floats("x", "past_key_0"), _floats("present_value_0"), "past_key_0"),
    _never("another layer", _floats("x", "past_key_1"), _floats("present_key_11"), "past_key_1"),
    # Names with a direction, of what is no state.
    _never("input, output", _floats("input"), _floats("output")),
    _never("x, x_out", _floats("x"), _floats("x_out")),
    _never("images", _floats("image_in"), _floats("image_out")),
    _never("a step of diffusion", _floats("sample", "timestep"), _floats("out_sample")),
    _never("tokens", _floats("input_ids", elem_type=INT64), _floats("output_ids", elem_type=INT64)),
    _never("embeddings", _floats("inputs_embeds"), _floats("last_hidden_state")),
    _never(
        "a forecast", _floats("past_values", "past_time_features"), _floats("last_hidden_state", "values")
    ),
    # Concats of what goes in and out, but of no cache.
    StateModel("an image with a mask", coloured(4, 1, is_read=False), {}),
    StateModel("colours beside an image", coloured(1, 2, is_read=True), {}),
)
