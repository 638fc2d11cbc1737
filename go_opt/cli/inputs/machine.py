"""Describes a machine as a target file: the questions, their checks, and the text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from go_opt.common.suggestion import suggestion
from go_opt.common.units import parse_amount
from go_opt.env.gpu.figures import Collective, scaled_figures
from go_opt.env.target import parse_target
from go_opt.env.target.definition import MAX_CHIPS, MAX_ROUTED_CHIPS
from go_opt.env.target.toml import toml_value
from go_opt.errors import InvalidInputError
from go_opt.model.dtypes import DTYPE_BITS, DTYPES, dtype_code

FigureValue = str | int | float | bool | list[str] | dict[str, float]
TOPOLOGIES: Final = ("all_to_all", "ring", "chain", "mesh2d", "host_star")  # not `listed`, written by hand


@dataclass(frozen=True)
class Figure:
    """One figure of a machine."""

    key: str
    question: str
    default: str
    read: Callable[[str, str], FigureValue]  # maps the answer and the key to a value
    only_of: str = ""  # the only topology that has this figure; empty: all

    def value(self, answer: str) -> FigureValue:
        """Parses an answer.

        Raises:
          InvalidInputError: the answer is invalid; one sentence says why.
        """
        return self.read(answer.strip(), self.key)


def _amount(unit: str, *, may_be_zero: bool = False) -> Callable[[str, str], float]:
    def read(text: str, key: str) -> float:
        amount = parse_amount(text, key, unit)
        if amount == 0 and not may_be_zero:
            raise InvalidInputError(f"{key} must be above zero.", field=key)
        return amount

    return read


def _bytes(text: str, key: str) -> int:
    return round(_amount("bytes")(text, key))


def _count(text: str, key: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MAX_CHIPS and len(text) < 9):
        raise InvalidInputError(
            f"{key} must be a whole number from 1 to {MAX_CHIPS}, not {text[:40]!r}.", field=key
        )
    return int(text)


def _name(text: str, key: str) -> str:
    if not text:
        raise InvalidInputError(f"{key} must not be empty.", field=key)
    return text


def _dtype(text: str, key: str) -> str:
    return DTYPES[dtype_code(text, field=key)]


def _topology(text: str, key: str) -> str:
    if text not in TOPOLOGIES:
        choice = ", ".join(TOPOLOGIES)
        raise InvalidInputError(f"{key} must be one of {choice}, not {text[:40]!r}.", field=key)
    return text


def _names(text: str, key: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise InvalidInputError(f"{key} must be names between commas, not {text[:40]!r}.", field=key)
    return names


def _rates(text: str, key: str) -> dict[str, float]:
    rates: dict[str, float] = {}
    for one in text.split(","):
        name, equals, amount = (part.strip() for part in one.partition("="))
        if not (name and equals) or name in rates:
            raise InvalidInputError(
                f"{key} must be such as Conv=5 TFLOPS,LSTM=1 TFLOPS, each type once, not {text[:60]!r}.",
                field=key,
            )
        rates[name] = _amount("FLOP/s")(amount, key)
    return rates


def _flag(text: str, key: str) -> bool:
    meant = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}.get(text.lower())
    if meant is None:
        raise InvalidInputError(f"{key} must be yes or no, not {text[:40]!r}.", field=key)
    return meant


FIGURES: Final = (
    Figure("name", "Name of the machine", "machine", _name),
    Figure("topology", f"How chips are linked ({', '.join(TOPOLOGIES)})", "all_to_all", _topology),
    Figure("chips", "Chips", "4", _count),
    Figure("columns", "Columns of the mesh", "2", _count, only_of="mesh2d"),
    Figure("native_dtype", "Type that models run in", "bfloat16", _dtype),
    Figure("matrix_flops_per_s", "Products in that type, of a chip", "100 TFLOPS", _amount("FLOP/s")),
    Figure("vector_flops_per_s", "All other work, of a chip", "10 TFLOPS", _amount("FLOP/s")),
    Figure("memory_bytes", "Memory of a chip", "16 GB", _bytes),
    Figure("memory_bytes_per_s", "Bandwidth of this memory", "500 GB/s", _amount("bytes/s")),
    Figure("kernel_overhead_s", "Start of a kernel", "4us", _amount("s", may_be_zero=True)),
    Figure(
        "dependency_overhead_s",
        "From the arrival of another chip's tensor to the kernel that reads it",
        "0s",
        _amount("s", may_be_zero=True),
    ),
    Figure("link_bytes_per_s", "Bandwidth of a link, one direction", "25 GB/s", _amount("bytes/s")),
    Figure("link_latency_s", "Latency of a link", "5us", _amount("s", may_be_zero=True)),
    Figure("host_in_bytes_per_s", "From the host to the chips", "25 GB/s", _amount("bytes/s")),
    Figure("host_out_bytes_per_s", "From the chips to the host", "25 GB/s", _amount("bytes/s")),
    Figure("overlap", "Do transfers run during compute", "yes", _flag),
)


# Given with --set alone. Chips with processors are GPUs, and get figures of kernels and collectives.
MORE: Final = (
    Figure("processors", "Processors of a GPU, such as SMs", "", _count),
    Figure("op_types", "The only op types that chips run", "", _names),
    Figure("not_op_types", "Op types that chips do not run", "", _names),
    Figure("flops_per_s_by_op_type", "Other rates of op types, in the native type", "", _rates),
    Figure("fitted_to", "What figures were fitted to, with their error", "", _name),
    Figure("devices", "Chips of a cluster of such nodes", "", _count),
    Figure("node_bytes_per_s", "Bandwidth of a node to others", "50 GB/s", _amount("bytes/s")),
    Figure("node_latency_s", "Latency between nodes", "5us", _amount("s", may_be_zero=True)),
)


def figure(key: str) -> Figure:
    """The figure with the given key.

    Raises:
      InvalidInputError: there is no such figure.
    """
    figures = (*FIGURES, *MORE)
    for one in figures:
        if one.key == key:
            return one
    known = [one.key for one in figures]
    hint = suggestion(key, known, otherwise=f"; known: {', '.join(known)}.")
    raise InvalidInputError(f"a target has no figure {key[:80]!r}{hint}", field=key)


def check_together(values: Mapping[str, FigureValue]) -> None:
    """Raise if answers contradict each other."""
    topology, chips = values.get("topology"), _whole(values.get("chips", 1))
    if chips > MAX_ROUTED_CHIPS and topology not in ("ring", "chain"):
        raise InvalidInputError(
            f"chips must be at most {MAX_ROUTED_CHIPS} for {topology}, not {chips}.", field="chips"
        )
    if chips % _whole(values.get("columns", 1)):
        raise InvalidInputError(f"columns must divide the {chips} chips.", field="columns")


def machine_text(given: Mapping[str, FigureValue], source: str) -> str:
    """The target file of a machine; missing figures get their defaults, marked as assumed.

    Raises:
      InvalidInputError: figures contradict each other.
    """
    topology = given.get("topology", "all_to_all")
    figures = [one for one in FIGURES if one.only_of in ("", topology)]
    values = {one.key: given[one.key] if one.key in given else one.value(one.default) for one in figures}
    check_together(values)

    values |= {one.key: given[one.key] for one in MORE if one.key in given}

    def line(field: str, key: str) -> str:
        return f"{field} = {_written(values[key])}" + ("" if key in given else " # assumed")

    is_forward = "true" if topology in ("ring", "chain") else "false"
    columns = [line("columns", "columns")] if "columns" in values else []
    lines = [
        "# Written by `go-opt targets new`. docs/hardware.md says what else a target can state.",
        line("name", "name"),
        line("native_dtype", "native_dtype"),
        line("overlap", "overlap"),
        *([line("fitted_to", "fitted_to")] if "fitted_to" in given else []),
        "",
        "[constraints]",
        f"acyclic = {is_forward}",
        'no_skip = "off"',
        'triangle = "off"',
        "",
        "[topology]",
        line("kind", "topology"),
        *columns,
        line("rate_bytes_per_s", "link_bytes_per_s"),
        line("latency_s", "link_latency_s"),
        "",
        "[host]",
        line("in_bytes_per_s", "host_in_bytes_per_s"),
        line("out_bytes_per_s", "host_out_bytes_per_s"),
        "",
        "[[kinds]]",
        'name = "chip"',
        line("count", "chips"),
        line("sram_bytes", "memory_bytes"),
        line("sram_bytes_per_s", "memory_bytes_per_s"),
        line("kernel_overhead_s", "kernel_overhead_s"),
        line("dependency_overhead_s", "dependency_overhead_s"),
        "pays_transfers = true",
        *(line(key, key) for key in ("op_types", "not_op_types") if key in given),
        *_op_type_lines(values),
        "",
        "[kinds.matrix_flops_per_s]",
        line(str(values["native_dtype"]), "matrix_flops_per_s"),
        "",
        "[kinds.vector_flops_per_s]",
        line("default", "vector_flops_per_s"),
        "",
        *_kernel_lines(values),
        *_level_lines(values, line),
    ]
    text = "\n".join(lines)
    parse_target(text, source)
    return text


def _op_type_lines(values: Mapping[str, FigureValue]) -> list[str]:
    rates = values.get("flops_per_s_by_op_type")
    if not isinstance(rates, dict):
        return []
    native = values["native_dtype"]
    stated = {name: {native: rate} for name, rate in rates.items()}
    return [f"flops_per_s_by_op_type = {toml_value(stated)}"]


def _kernel_lines(values: Mapping[str, FigureValue]) -> list[str]:
    """Figures of kernels and collectives of an H100, scaled by the rates; none of a chip that is no GPU."""
    if "processors" not in values:
        return []
    bits = float(DTYPE_BITS[dtype_code(str(values["native_dtype"]))])
    rate, bytes_per_s, link = (
        _number(values[key]) for key in ("matrix_flops_per_s", "memory_bytes_per_s", "link_bytes_per_s")
    )
    processors = _whole(values["processors"])
    figures = vars(scaled_figures(rate * bits / 16.0, bytes_per_s, processors))
    lines = [f"{name} = {_written(value)} # assumed" for name, value in figures.items() if value]
    lines = ["[kinds.kernels]", f"tiles_at_once = {processors}", *lines[1:], ""]
    for one in Collective.scaled(link) if _whole(values["chips"]) > 1 else ():
        op, *rows = (f"{name} = {_written(value)}" for name, value in vars(one).items() if value)
        lines += ["[[collectives]]", op, *(f"{row} # assumed" for row in rows), ""]
    return lines


def _level_lines(values: dict[str, FigureValue], line: Callable[[str, str], str]) -> list[str]:
    """The networks of a node and of a cluster; none if there is no cluster."""
    if "devices" not in values:
        return []
    values |= {one.key: one.value(one.default) for one in MORE if one.default and one.key not in values}
    node = [line("size", "chips"), line("rate_bytes_per_s", "link_bytes_per_s")]
    cluster = [line("size", "devices"), line("rate_bytes_per_s", "node_bytes_per_s")]
    return [
        "[[levels]]", 'name = "node"', *node, line("latency_s", "link_latency_s"), "",
        "[[levels]]", 'name = "cluster"', *cluster, line("latency_s", "node_latency_s"), "",
    ]  # fmt: skip


def _number(value: FigureValue) -> float:
    assert isinstance(value, int | float)
    return float(value)


def _whole(value: FigureValue) -> int:
    return int(_number(value))


def _written(value: FigureValue) -> str:
    """Formats a value in engineering notation: 25e9, 4e-6."""
    if isinstance(value, float) and value:
        exponent = math.floor(math.log10(value)) // 3 * 3
        return f"{value / 10.0**exponent:.12g}e{exponent}" if exponent else f"{value:.12g}"
    return toml_value(value)
