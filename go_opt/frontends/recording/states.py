"""Finds which inputs and outputs of a model are one state: by the pairs given, and by exporters' names.

Names say it as ``past_key_values.0.key`` and ``present.0.key``, ``h0`` and ``hn``, ``cache`` and
``cache_out``: without the words for "before" and "after" they are equal. So does an output with the name of
an input, if that is a word of a state. Shapes are equal, or the next value is longer along one dimension. A
name that two inputs or two outputs share says nothing. Weights that a training step leaves anew are states of
the model: ``w`` and ``w_new``, of equal shape.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, cast, get_args

from go_opt.common.suggestion import suggestion
from go_opt.errors import ModelError
from go_opt.model.graph import NamedState, Scope

_BEFORE: Final = frozenset({"past", "prev", "previous", "old"})
_AFTER: Final = frozenset({"present", "next", "new", "updated"})
# Words for a direction that other tensors have too: with one of these, the name must have a word of a state.
_IN: Final = frozenset({"in", "input"})
_OUT: Final = frozenset({"out", "output", "n", "r"})
_DIRECTIONS: Final = _BEFORE | _AFTER | _IN | _OUT
_STATE: Final = frozenset({"state", "states", "cache", "cached", "mem", "mems"})
_OF_STATES: Final = _STATE.union(
    ("hidden", "h", "c", "memory", "kv", "key", "value", "val", "k", "v"),
    ("conv", "ssm", "cell", "rnn", "lstm", "gru", "buffer", "lens"),
)
_WORD: Final = re.compile(r"[a-z]+|[A-Z]+(?![a-z])|[A-Z][a-z]*|[0-9]+")


class Facts(NamedTuple):
    """What is known of an input or output."""

    shape: tuple[int, ...]
    dtype: str


class FoundStates(NamedTuple):
    """The states of a model, and its inputs that look like one and are none."""

    states: tuple[NamedState, ...] = ()
    unpaired: tuple[str, ...] = ()

    @property
    def reads(self) -> frozenset[str]:
        """The tensors that are states."""
        return frozenset(state.read for state in self.states)


def find_states(
    inputs: Mapping[str, Facts],
    outputs: Mapping[str, Facts],
    given: Mapping[str, str],
    has_value: Callable[[str], bool] = lambda name: False,
    others: Iterable[str] = (),
    exact: Mapping[str, str] = MappingProxyType({}),
    weights: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> FoundStates:
    """The states of a model.

    Args:
      given: an input, or a pattern with a ``*`` -> its next value as ``NAME`` or ``NAME:SCOPE``, where ``*``
        stands for the same text; empty: these inputs are no states. They come before what names say.
      has_value: whether the model has a value for an input, as for trained weights; its scope is the model.
      others: further tensors that may be named in ``given``, such as weights.
      weights: the shapes of weights, which may have next values by their names.
      exact: inputs or others -> their next values, where the model or its ops say it; they come before names.

    Raises:
      ModelError: an entry of ``given`` names no input or no output, or two that are no state by their shapes.
    """
    known, exact = [*inputs, *others, *weights], {**_of_training(weights, outputs), **exact}
    states, refused = dict[str, NamedState](), set[str]()
    for pattern, following in given.items():
        matched = {name: star for name in known if (star := star_of(pattern, name)) is not None}
        if not matched and pattern != "*":
            raise ModelError(
                f"--state {pattern}={following}: the model has no input {pattern!r}"
                f"{suggestion(pattern, known)}",
                field="states",
            )
        if not following:
            refused |= matched.keys()
            continue
        named_next = {name: following.replace("*", star) for name, star in matched.items()}
        found = [name for name, after in named_next.items() if _scope_of(after)[0] in outputs]
        # Of the inputs that a pattern matches, those are states that have a next value, if any has.
        for name in (found if "*" in pattern else []) or named_next:
            states[name] = _given(name, named_next[name], inputs, outputs, has_value)
    named = {name: facts for name, facts in inputs.items() if name not in exact}
    free = {name: facts for name, facts in outputs.items() if name not in exact.values()}
    said = {**exact, **dict(_by_name(named, free))}
    taken = {state.next for state in states.values()}
    for name, following in said.items():
        if name not in states and name not in refused and following not in taken:
            states[name] = NamedState(name, following, "model" if has_value(name) else "sequence")
    looks = [name for name, facts in named.items() if name in outputs or _looks_like_a_state(name, facts)]
    return FoundStates(
        tuple(states.values()), tuple(name for name in {**said, **dict.fromkeys(looks)} if name not in states)
    )


def star_of(pattern: str, name: str) -> str | None:
    """The text that the ``*`` of a pattern stands for in a name; None if it does not match."""
    if "*" not in pattern:
        return "" if pattern == name else None
    head, _, tail = pattern.partition("*")
    is_match = len(name) >= len(head) + len(tail) and name.startswith(head) and name.endswith(tail)
    return name[len(head) : len(name) - len(tail)] if is_match else None


def _given(
    name: str,
    following: str,
    inputs: Mapping[str, Facts],
    outputs: Mapping[str, Facts],
    has_value: Callable[[str], bool],
) -> NamedState:
    following, said = _scope_of(following)
    read, after = inputs.get(name), outputs.get(following)
    if read is not None and after is not None and not fits(read, after):
        raise ModelError(
            f"--state {name}={following}: {read.dtype} of shape {list(read.shape)} cannot become "
            f"{after.dtype} of shape {list(after.shape)}: a next value may be longer along one dimension.",
            field="states",
        )
    scope = said or ("model" if has_value(name) else "sequence")
    if following != name and following not in outputs:
        raise ModelError(
            f"--state {name}={following}: the model has no output {following!r}"
            f"{suggestion(following, outputs)}",
            field="states",
        )
    return NamedState(name, following, scope)


def _scope_of(following: str) -> tuple[str, Scope | None]:
    """The name of a next value, and the scope that is said behind it."""
    base, colon, last = following.rpartition(":")
    return (base, cast("Scope", last)) if colon and last in get_args(Scope) else (following, None)


def _of_training(weights: Mapping[str, tuple[int, ...]], outputs: Mapping[str, Facts]) -> Mapping[str, str]:
    """The next values of weights and moments, of these shapes, that names say: ``w`` and ``w_new``."""
    before, after = dict[tuple[str, ...], list[str]](), dict[tuple[str, ...], list[str]]()
    for name in weights:
        before.setdefault(tuple(_words(name)), []).append(name)
    for name in outputs:
        words = _words(name)
        key = tuple(word for word in words if word not in _AFTER)
        if len(key) < len(words):
            after.setdefault(key, []).append(name)
    pairs = {
        names[0]: after[key][0] for key, names in before.items() if len(names) == len(after.get(key, ())) == 1
    }
    return {name: following for name, following in pairs.items() if outputs[following].shape == weights[name]}


def _by_name(inputs: Mapping[str, Facts], outputs: Mapping[str, Facts]) -> Iterator[tuple[str, str]]:
    """Pairs of which the names say that they are one state."""
    same = [name for name in inputs if name in outputs and fits(inputs[name], outputs[name])]
    yield from ((name, name) for name in same if says_a_state(name, _OF_STATES))
    after = _by_key(outputs, _AFTER, _OUT)
    for is_first in (False, True):  # h0 is the state before hn, if there is no h0 that comes after
        before = _by_key(inputs, _BEFORE, _IN, is_first=is_first)
        for key, names in before.items():
            following = after.get(key, [])
            if len(names) != 1 or len(following) != 1:
                continue
            (read, reads_weakly), (next_value, says_after) = names[0], following[0]
            is_strong = says_after == 2 or (says_after == 1 and reads_weakly == 2)
            if not says_after or not (is_strong or _OF_STATES.intersection(key)):
                continue
            if fits(inputs[read], outputs[next_value]):
                del after[key]
                yield read, next_value


def _by_key(
    names: Iterable[str], strong: frozenset[str], weak: frozenset[str], *, is_first: bool = False
) -> dict[tuple[str, ...], list[tuple[str, int]]]:
    """Names by their words without direction; each with 2 if it has a strong one, 1 if a weak one, else 0."""
    rows: dict[tuple[str, ...], list[tuple[str, int]]] = {}
    for name in names:
        words = _words(name)
        strength = 2 if strong & set(words) else 1 if weak & set(words) else 0
        key = [word for word in words if word not in _DIRECTIONS]
        if is_first:
            if key[-1:] != ["0"]:
                continue
            key.pop()
        if key:
            rows.setdefault(tuple(key), []).append((name, strength))
    return rows


def _words(name: str) -> list[str]:
    name = re.sub(r"(?i)(past|present)_key_values", r"\1", name)
    name = re.sub(r"\b([hc])n\b", r"\1_n", name)
    return [word.lower() for word in _WORD.findall(name)]


def fits(read: Facts, following: Facts) -> bool:
    """Whether the next value has the type, and the shape or one that is longer along one dimension."""
    if read.dtype != following.dtype or len(read.shape) != len(following.shape):
        return False
    apart = [(a, b) for a, b in zip(read.shape, following.shape, strict=True) if a != b]
    return not apart or (len(apart) == 1 and apart[0][1] > apart[0][0])


def _looks_like_a_state(name: str, facts: Facts) -> bool:
    return "float" in facts.dtype and says_a_state(name.partition("[")[0])


def says_a_state(name: str, words_of_states: frozenset[str] = _STATE) -> bool:
    """Whether a name has one of these words, or is of something before."""
    words = _words(name)
    rest = [word for word in words if word not in _BEFORE]
    is_before = len(rest) < len(words)
    return bool(words_of_states.intersection(words)) or (
        is_before and bool(_OF_STATES.intersection(rest) or all(map(str.isdigit, rest)))
    )
