"""A model of equal blocks, and one way to divide its training step among devices, each as pairs of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

from go_opt.common.suggestion import suggestion
from go_opt.errors import InvalidInputError

_T = TypeVar("_T")
MAX_COUNT: Final = 10**9
_SWITCH: Final = {"on": True, "off": False}


def read_pairs(text: str, made: type[_T], what: str) -> _T:
    """The dataclass of a text of ``name=value`` pairs, joined by commas.

    Fields are whole numbers of one or more, seconds (``float``), switches (``on``, ``off``) or one of some
    words; those without a default must be given.

    Raises:
      InvalidInputError: a name is unknown, given twice or missing, or a value is malformed.
    """
    known = {field.name: field for field in fields(made)}  # type: ignore[arg-type]
    kinds, given = get_type_hints(made), dict[str, Any]()
    for pair in text.split(",") if text else ():
        name, equals, value = pair.strip().partition("=")
        if name not in known or not equals:
            raise InvalidInputError(
                f"{what}: {pair.strip()[:60]!r} must be one of {', '.join(known)} with =VALUE"
                f"{suggestion(name, sorted(known)) or '.'}",
                field=name[:60] or what,
            )
        if name in given:
            raise InvalidInputError(f"{what}: {name} is given twice.", field=name)
        given[name] = _read(value, kinds[name], name, what)
    for name, field in known.items():
        if name not in given and field.default is MISSING:
            raise InvalidInputError(f"{what}: {name} is missing.", field=name)
    return made(**given)


def pairs_text(values: Mapping[str, Any]) -> str:
    """The text that :func:`read_pairs` reads as these values; what is None is left out."""
    words = {value: word for word, value in _SWITCH.items()}
    return ",".join(
        f"{name}={words[value] if isinstance(value, bool) else value}"
        for name, value in values.items()
        if value is not None
    )


def _read(value: str, kind: Any, name: str, what: str) -> Any:
    if get_origin(kind) is Literal:
        return _one_of(value, get_args(kind), name, what)
    if kind is bool:
        return _SWITCH[_one_of(value, tuple(_SWITCH), name, what)]
    if kind == float | None:
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0.0 <= number <= MAX_COUNT:
            raise InvalidInputError(
                f"{what}: {name} must be seconds of zero or more, not {value[:60]!r}.", field=name
            )
        return number
    if not (value.isascii() and value.isdigit() and len(value) < 11 and int(value) <= MAX_COUNT):
        raise InvalidInputError(f"{what}: {name} must be a whole number, not {value[:60]!r}.", field=name)
    return int(value)


def _one_of(value: str, words: Sequence[Any], name: str, what: str) -> Any:
    texts = {str(word): word for word in words}
    if value not in texts:
        raise InvalidInputError(
            f"{what}: {name} must be one of {', '.join(texts)}, not {value[:60]!r}.", field=name
        )
    return texts[value]


TRANSFORMER_PREFIX: Final = "gpt:"


@dataclass(frozen=True)
class Transformer:
    """A decoder of equal layers behind a table of tokens, which is also the last product's.

    A layer is attention and an MLP. Biases, norms and positions are left out of the parameters: less than
    0.1 % of them.
    """

    hidden: int
    layers: int
    heads: int
    sequence: int  # tokens of one sequence
    vocabulary: int = 51200
    mlp: int = 0  # columns of the MLP's first product; 0: four times hidden
    kv_heads: int = 0  # heads of keys and values; 0: as many as heads
    gated: bool = False  # the MLP has a second first product, which gates
    experts: int = 1  # MLPs of a layer
    experts_per_token: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "mlp", self.mlp or 4 * self.hidden)
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        for field in fields(self):
            if getattr(self, field.name) < (field.type != "bool"):
                raise InvalidInputError(f"gpt: {field.name} must be 1 or more.", field=field.name)
        for name, whole, part in (("heads", "hidden", "heads"), ("kv_heads", "heads", "kv_heads")):
            if getattr(self, whole) % getattr(self, part):
                raise InvalidInputError(
                    f"gpt: {name}={getattr(self, name)} does not divide {whole}={getattr(self, whole)}.",
                    field=name,
                )
        if self.experts_per_token > self.experts:
            raise InvalidInputError(
                f"gpt: experts_per_token={self.experts_per_token} is above experts={self.experts}.",
                field="experts_per_token",
            )

    @property
    def kv_columns(self) -> int:
        """Columns of keys, and of values."""
        return self.hidden // self.heads * self.kv_heads

    @property
    def attention_parameters(self) -> int:
        """Of the attention of one layer."""
        return 2 * self.hidden * (self.hidden + self.kv_columns)

    @property
    def mlp_parameters(self) -> int:
        """Of all experts of one layer."""
        return self.experts * (3 if self.gated else 2) * self.hidden * self.mlp

    @property
    def parameters(self) -> int:
        """Of the model; the table of tokens counts once."""
        layer = self.attention_parameters + self.mlp_parameters
        return self.layers * layer + self.vocabulary * self.hidden


def parse_transformer(text: str) -> Transformer:
    """The model of ``gpt:hidden=12288,layers=96,heads=96,sequence=2048``.

    Raises:
      InvalidInputError: a size is missing, malformed or does not divide another.
    """
    return read_pairs(text.removeprefix(TRANSFORMER_PREFIX), Transformer, "gpt")


Recompute = Literal["full", "attention", "none"]
Schedule = Literal["1f1b", "gpipe", "interleaved"]
Zero = Literal[0, 1, 2, 3]
RECOMPUTE: Final[tuple[Recompute, ...]] = ("none", "attention", "full")  # more and more of it
ZERO: Final[tuple[Zero, ...]] = (0, 1, 2, 3)
OPTION: Final = "--parallel"


@dataclass(frozen=True)
class Configuration:
    """Degrees of parallelism and how stages run. Devices are numbered by tensor, expert, data, pipeline.

    ``data`` replicas hold the same parameters. ``expert`` divides the experts of each layer; its devices
    have different sequences, so everything but experts is replicated over them too.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1
    micro_batch: int = 1  # sequences
    schedule: Schedule = "1f1b"
    stages_per_device: int = 1
    zero: Zero = 0
    recompute: Recompute = "full"
    sequence_parallel: bool = False
    overlap: bool = False  # gradients are summed while backward passes run
    host_s_per_layer: float | None = None  # in place of the target's

    @property
    def devices(self) -> int:
        return self.tensor * self.pipeline * self.data * self.expert

    @property
    def replicas(self) -> int:
        """Groups of devices with different sequences."""
        return self.data * self.expert

    def micro_batches(self, batch: int) -> int:
        """Of one replica in a step of ``batch`` sequences."""
        return batch // (self.replicas * self.micro_batch)

    def in_flight(self, stage: int, batch: int) -> float:
        """Micro-batches whose activations a device of pipeline rank ``stage`` keeps at most."""
        number, v = self.micro_batches(batch), self.stages_per_device
        if self.schedule == "gpipe":
            return number
        if v == 1:
            return min(number, self.pipeline - stage)
        warm_up = 2 * (self.pipeline - stage - 1) + (v - 1) * self.pipeline
        return min(number, (warm_up + 1) / v)


def parse_configuration(text: str) -> Configuration:
    """The configuration of ``tensor=8,pipeline=8,data=8,micro_batch=1``; errors name the key."""
    return read_pairs(text, Configuration, OPTION)


def check_configuration(chosen: Configuration, model: Transformer, devices: int, batch: int) -> None:
    """Raise InvalidInputError unless the model and the batch can be divided so."""
    for field, is_right, problem in _rules(chosen, model, devices, batch):
        if not is_right:
            raise InvalidInputError(f"{OPTION}: {problem}.", field=field)


def undivided(model: Transformer, tensor: int) -> list[str]:
    """Sizes of the model that so many tensor ranks do not divide; keys and values may also be repeated."""
    sizes = {"heads": model.heads, "mlp": model.mlp}
    if tensor % model.kv_heads:
        sizes["kv_heads"] = model.kv_heads
    return [f"{name}={size}" for name, size in sizes.items() if size % tensor]


def _rules(
    chosen: Configuration, model: Transformer, devices: int, batch: int
) -> list[tuple[str, bool, str]]:
    """Of each rule: the field at fault, whether it holds, and the problem."""
    t, v = chosen.tensor, chosen.stages_per_device
    counted = ("tensor", "pipeline", "data", "expert", "micro_batch", "stages_per_device")
    degrees = f"tensor={t} x pipeline={chosen.pipeline} x data={chosen.data} x expert={chosen.expert}"
    found = [(name, getattr(chosen, name) >= 1, f"{name} must be 1 or more") for name in counted]
    if not all(is_right for _, is_right, _ in found):
        return found
    share, stages = chosen.replicas * chosen.micro_batch, chosen.pipeline * v
    found += [
        ("tensor", chosen.devices == devices, f"{degrees} is {chosen.devices} devices of {devices}"),
        *(("tensor", False, f"tensor={t} does not divide {name}") for name in undivided(model, t)),
        (
            "sequence_parallel",
            not chosen.sequence_parallel or model.sequence % t == 0,
            f"tensor={t} does not divide sequence={model.sequence}, which sequence_parallel=on needs",
        ),
        (
            "pipeline" if v == 1 else "stages_per_device",
            stages <= model.layers,
            f"{stages} stages are more than layers={model.layers}",
        ),
        (
            "expert",
            model.experts % chosen.expert == 0,
            f"expert={chosen.expert} does not divide experts={model.experts}",
        ),
        (
            "micro_batch",
            batch % share == 0,
            f"micro_batch={chosen.micro_batch} on {chosen.replicas} replicas does not divide batch={batch}",
        ),
    ]
    if chosen.schedule != "interleaved":
        return [*found, ("stages_per_device", v == 1, "stages_per_device is for schedule=interleaved")]
    problem = f"schedule=interleaved needs micro-batches in multiples of pipeline={chosen.pipeline}"
    return [
        *found,
        ("stages_per_device", v > 1, "schedule=interleaved needs stages_per_device of 2 or more"),
        ("schedule", batch // share % chosen.pipeline == 0, problem),
        ("schedule", chosen.pipeline > 1, "schedule=interleaved needs pipeline of 2 or more"),
    ]
