"""A JSON schema of target files, for editors and other tools: the reader's rules for each field.

Only the reader checks rules across fields: links join existing chips, a triangle rule needs a ring or chain,
names of kinds differ, a kind has one list of op types, and a topology has a maximum number of chips.
"""

from __future__ import annotations

from typing import Any, Final

from go_opt.env.target.simulator_parameters import ANALYTICAL_EFFECTS
from go_opt.env.target.topology import TOPOLOGIES
from go_opt.model.dtypes import DTYPE_NAMES
from go_opt.model.kernel_patterns import PATTERNS

_Schema = dict[str, Any]
_MOST: Final = 2**62 - 1  # largest count


def target_schema() -> _Schema:
    """A JSON schema (draft 2020-12) of a target file."""
    required = {
        "name": _text("The target's name in plans."),
        "native_dtype": {"enum": list(DTYPE_NAMES), "description": "The type of floating tensors."},
        "overlap": _flag("Transfers overlap compute."),
        "constraints": _table("Rules of every placement.", _CONSTRAINTS),
        "kinds": {
            "type": "array",
            "minItems": 1,
            "items": _table("Chips of one kind.", _KIND, _KIND_OPTIONAL),
            "description": "Chips are numbered in the order of their kinds.",
        },
        "topology": {"oneOf": [_topology(kind) for kind in TOPOLOGIES]},
        "host": _table("Both directions are shared by all chips.", _HOST),
    }
    optional = {
        "description": {"type": "string"},
        "fitted_to": _text("The measurements that go-opt calibrate fitted figures to."),
        "power_w": _positive("Watts of all chips."),
        "simulator": _table("Simulator parameters of the package.", _SIMULATOR),
        "kernel_patterns": {
            "type": "array",
            "items": {"enum": list(PATTERNS)},
            "description": "Patterns that the runtime has as one kernel (docs/environment.md).",
        },
        "analytical": _table("Simulator effects in the analytical model.", {"effects": _EFFECTS}),
    }
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "go-opt target"}
    return head | _table("Chips, links, host and rules (docs/hardware.md).", required, optional)


def _table(description: str, required: _Schema, optional: _Schema | None = None) -> _Schema:
    return {
        "type": "object",
        "description": description,
        "required": list(required),
        "properties": required | (optional or {}),
        "additionalProperties": False,
    }


def _text(description: str) -> _Schema:
    return {"type": "string", "minLength": 1, "description": description}


def _flag(description: str) -> _Schema:
    return {"type": "boolean", "description": description}


def _positive(description: str) -> _Schema:
    return {"type": "number", "exclusiveMinimum": 0, "description": description}


def _non_negative(description: str) -> _Schema:
    return {"type": "number", "minimum": 0, "description": description}


def _whole(description: str, least: int = 1) -> _Schema:
    return {"type": "integer", "minimum": least, "maximum": _MOST, "description": description}


def _rates(description: str) -> _Schema:
    rates = {name: _positive(f"Rate of {name}.") for name in DTYPE_NAMES}
    return {
        "type": "object",
        "description": description,
        "minProperties": 1,
        "properties": rates | {"default": _positive("Rate of types that are not listed.")},
        "additionalProperties": False,
    }


def _topology(kind: str) -> _Schema:
    fields: _Schema = {"kind": {"const": kind}}
    if kind == "listed":
        links = {"type": "array", "minItems": 1, "items": _table("A link in one direction.", _LINK)}
        return _table("Every link.", fields | {"links": links})
    fields |= {"rate_bytes_per_s": _RATE, "latency_s": _LATENCY}
    if kind == "mesh2d":
        fields["columns"] = _whole("Chips per row.")
    return _table(f"Links of a {kind}.", fields)


_RATE: Final = _positive("Bytes per second of a link, in each direction.")
_LATENCY: Final = _non_negative("Latency of a link in seconds.")
_LINK: Final[_Schema] = {
    "source": _whole("The chip that sends.", 0),
    "destination": _whole("The chip that receives.", 0),
    "rate_bytes_per_s": _RATE,
    "latency_s": _LATENCY,
}
_CONSTRAINTS: Final[_Schema] = {
    "acyclic": _flag("Results go to no lower chip on a ring or chain; elsewhere chips form no cycle."),
    "no_skip": {"enum": ["prefix", "all", "off"], "description": "Which chips must be used."},
    "triangle": {
        "enum": ["longest_path", "three_chip", "adjacent", "off"],
        "description": "Which detours parallel to a direct dependency are forbidden.",
    },
}
_HOST: Final[_Schema] = {
    "in_bytes_per_s": _positive("From the host to the chips: inputs and streamed weights."),
    "out_bytes_per_s": _positive("From the chips to the host: outputs."),
}
_KIND: Final[_Schema] = {
    "name": _text("The kind's name in cost tables."),
    "count": _whole("Chips of the kind."),
    "sram_bytes": _whole("Memory of a chip, for weights and activations."),
    "sram_bytes_per_s": _positive("Bytes per second that a kernel moves to and from this memory."),
    "kernel_overhead_s": _non_negative("Overhead of each kernel in seconds."),
    "matrix_flops_per_s": _rates("FLOP/s of matrix products, by type."),
    "vector_flops_per_s": _rates("FLOP/s of all other work, by type."),
}
_OP_FACTOR: Final[_Schema] = {
    "op_type": _text("Type of the ops."),
    "factor": _positive("Factor on their seconds."),
}
_SHAPE: Final[_Schema] = {
    "type": "array",
    "minItems": 4,
    "maxItems": 4,
    "items": _whole("Elements."),
    "description": "Only products of this batch, rows, inner size and columns; these win.",
}
_KIND_SIM: Final = _table(
    "Simulator parameters of the kind.",
    {
        "tile": {
            "type": "array",
            "minItems": 3,
            "maxItems": 3,
            "items": _whole("Elements."),
            "description": "Rows, inner size and columns of a matrix unit's tile.",
        },
        "tiles_at_once": _whole("Tiles computed in parallel, also along the inner dimension."),
        "fill_s": _non_negative("Seconds until the first result leaves a matrix unit."),
        "vector_lanes": _whole("Elements that a vector unit takes at a time."),
        "dma_engines": _whole("Transfers that a chip sends at once; 0: any number.", 0),
        "dma_setup_s": _non_negative("Seconds of each transfer before its first byte."),
        "alignment_bytes": _whole("Alignment of buffers in memory."),
        "stream_buffer_bytes": _whole("Reserved on a chip that streams weights.", 0),
    },
    {
        "op_factors": {
            "type": "array",
            "minItems": 1,
            "items": _table("A factor on the seconds of ops of a type.", _OP_FACTOR, {"shape": _SHAPE}),
            "description": "How much longer ops take than rates, tiles and lanes explain.",
        }
    },
)
_OP_TYPES: Final[_Schema] = {
    "oneOf": [
        _text("An op type."),
        {"type": "array", "minItems": 1, "items": _text("An op type.")},
    ]
}
_KIND_OPTIONAL: Final[_Schema] = {
    "op_types": _OP_TYPES | {"description": "The only op types that the kind runs (default: all)."},
    "not_op_types": _OP_TYPES | {"description": "Op types that the kind does not run."},
    "flops_per_s_by_op_type": {
        "type": "object",
        "additionalProperties": _rates("FLOP/s of ops of this type, by numeric type."),
        "description": "Rates of op types, in place of those of matrix and vector work.",
    },
    "pays_transfers": _flag("Without overlap, transfers take the chip's time (default: true)."),
    "dependency_overhead_s": _non_negative("Seconds between a tensor's arrival and its reader (default: 0)."),
    "simulator": _KIND_SIM,
}
_SIMULATOR: Final[_Schema] = {
    "buffers": _whole("Buffers of each tensor that enters or leaves a chip; 0: any number.", 0),
    "packet_bytes": _whole("A switch forwards a packet once it is complete; 0: no packets.", 0),
    "packet_header_bytes": _whole("Header bytes of each packet.", 0),
    "host_multicast": _flag("An input read on several chips crosses the host's link once."),
    "weight_prefetch": _flag("Weights stream ahead for a whole inference; else one kernel ahead."),
    "noise": _non_negative("Relative standard deviation of a measured interval."),
}
_EFFECTS: Final[_Schema] = {"type": "array", "items": {"enum": list(ANALYTICAL_EFFECTS)}}
