"""Measures kernels of a GPU with PyTorch, and writes tables of kernels.

Run: python tests/benchmarks/measure_gpu_kernels.py OUT [--minutes 10] [--device cuda] [--only NAME ...]
    [--tiny]

Needs torch and numpy. OUT gets a CSV file of each kind of kernel. Kinds take turns, with sizes drawn by a
seed, so a run that is stopped has rows of all; rows are written one by one, and a run into the same folder
goes on behind them. Each row is the median of rounds of calls in a CUDA graph, if they can be captured: the
seconds of kernels, not of launches. Cold operands are copies in turn that exceed any cache.

``go-opt calibrate --kernels`` reads products, batched products, convolutions (as the products that they
lower to) and causal attention. The other files have columns of their own, which it refuses: no form of
go-opt has figures for them yet.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

COLD_BYTES: Final = 512e6  # of operands in turn: more than any cache
MOST_COPIES: Final = 32
MOST_BYTES: Final = 4e9  # of the operands of one call
LEAST_S: Final = 2e-3  # of a round
ROUNDS: Final = 7
Sizes = dict[str, int]
Call = Callable[[], object]


@dataclass(frozen=True)
class Kind:
    """A kind of kernels: how sizes are drawn, and what is called with them."""

    columns: tuple[str, ...]
    draw: Callable[[Drawn], Sizes]
    make: Callable[[Any, Sizes, Any], Call]  # torch, sizes, options of new tensors
    num_bytes: Callable[[Sizes], float]  # of operands and results, with two bytes an element
    is_cold: bool = True


class Drawn:
    """Sizes drawn evenly by their logarithms."""

    def __init__(self, seed: int, most: float) -> None:
        self._rng, self._most = np.random.default_rng(seed), most

    def size(self, least: int, most: int, multiple: int = 1) -> int:
        most = max(least, int(most * self._most))
        drawn = math.exp(self._rng.uniform(math.log(least), math.log(most + 1)))
        return max(least, min(most, int(drawn)) // multiple * multiple)

    def one(self, *sizes: int) -> int:
        return int(self._rng.choice(sizes))


def _product(draw: Drawn) -> Sizes:
    rows = draw.size(1, 64) if draw.one(0, 1) else draw.size(64, 16_384)
    return {"m": rows, "n": draw.size(32, 16_384, 8), "k": draw.size(32, 16_384, 8)}


def _batched(draw: Drawn) -> Sizes:
    sizes = {"batch": draw.size(2, 512), "m": draw.size(1, 2048)}
    return sizes | {"n": draw.size(16, 2048, 8), "k": draw.size(16, 2048, 8)}


def _attention(draw: Drawn, *, rows: int = 0, is_cross: bool = False) -> Sizes:
    groups = draw.one(1, 2, 4, 8, 16, 32)
    isl = rows or draw.size(16, 8192)
    return {
        "batch_size": draw.size(1, 64), "isl": isl, "step": draw.size(16, 16_384) if rows or is_cross else 0,
        "num_heads": groups * draw.one(1, 2, 4, 8), "num_key_value_heads": groups,
        "head_dim": draw.one(64, 128),
    }  # fmt: skip


def _convolution(draw: Drawn) -> Sizes:
    side = draw.one(7, 14, 28, 56, 112)
    return {
        "images": draw.size(1, 64), "channels": draw.one(3, 32, 64, 128, 256, 512),
        "filters": draw.one(32, 64, 128, 256, 512), "side": side, "window": draw.one(1, 3, 5),
    }  # fmt: skip


def _moved(draw: Drawn) -> Sizes:
    return {"rows": draw.size(1, 65_536), "columns": draw.size(16, 16_384)}


def _matmul(torch: Any, of: Sizes, new: Any) -> Call:
    a, b = torch.randn(of["m"], of["k"], **new), torch.randn(of["k"], of["n"], **new)
    return lambda: a @ b


def _bmm(torch: Any, of: Sizes, new: Any) -> Call:
    a = torch.randn(of["batch"], of["m"], of["k"], **new)
    b = torch.randn(of["batch"], of["k"], of["n"], **new)
    return lambda: torch.bmm(a, b)


def _keys(of: Sizes) -> int:
    """Those before the rows and of the rows, or of cross attention other ones."""
    return of["step"] + (of["isl"] if of["isl"] == 1 or not of["step"] else 0)


def _sdpa(*, causal: bool) -> Callable[[Any, Sizes, Any], Call]:
    def make(torch: Any, of: Sizes, new: Any) -> Call:
        keys = _keys(of)
        q = torch.randn(of["batch_size"], of["num_heads"], of["isl"], of["head_dim"], **new)
        k, v = (
            torch.randn(of["batch_size"], of["num_key_value_heads"], keys, of["head_dim"], **new)
            for _ in range(2)
        )
        attend = torch.nn.functional.scaled_dot_product_attention
        return lambda: attend(q, k, v, is_causal=causal and of["isl"] > 1, enable_gqa=True)

    return make


def _conv(torch: Any, of: Sizes, new: Any) -> Call:
    image = torch.randn(of["images"], of["channels"], of["side"], of["side"], **new)
    weight = torch.randn(of["filters"], of["channels"], of["window"], of["window"], **new)
    return lambda: torch.nn.functional.conv2d(image, weight, padding=of["window"] // 2)


def _of_rows(op: Callable[[Any, Any], Any]) -> Callable[[Any, Sizes, Any], Call]:
    def make(torch: Any, of: Sizes, new: Any) -> Call:
        x = torch.randn(of["rows"], of["columns"], **new)
        return lambda: op(torch, x)

    return make


def _bytes_of_product(of: Sizes) -> float:
    m, n, k = of["m"], of["n"], of["k"]
    return 2.0 * of.get("batch", 1) * (m * k + k * n + m * n)


def _bytes_of_attention(of: Sizes) -> float:
    queries, keys = of["isl"] * of["num_heads"], _keys(of) * of["num_key_value_heads"]
    return 4.0 * of["batch_size"] * of["head_dim"] * (queries + keys)


def _bytes_of_convolution(of: Sizes) -> float:
    images = of["images"] * of["side"] ** 2 * (of["channels"] + of["filters"])
    return 2.0 * (images + of["filters"] * of["channels"] * of["window"] ** 2)


PRODUCT: Final = ("m", "n", "k")
ATTENTION: Final = ("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim")
NOT_CAUSAL: Final = ("batch_size", "rows", "keys", "num_heads", "num_key_value_heads", "head_dim")
ROWS: Final = ("rows", "columns")
OPS: Final[dict[str, tuple[Callable[[Any, Any], Any], float]]] = {  # with bytes an element
    "add": (lambda torch, x: x + x, 4.0),
    "gelu": (lambda torch, x: torch.nn.functional.gelu(x), 4.0),
    "softmax": (lambda torch, x: torch.softmax(x, -1), 4.0),
    "layer_norm": (lambda torch, x: torch.nn.functional.layer_norm(x, x.shape[-1:]), 4.0),
    "sum": (lambda torch, x: x.sum(-1), 2.0),
    "transpose": (lambda torch, x: x.t().contiguous(), 4.0),
}


def _row_kind(name: str) -> Kind:
    op, element_bytes = OPS[name]
    return Kind(ROWS, _moved, _of_rows(op), lambda of: element_bytes * of["rows"] * of["columns"])


KINDS: Final[dict[str, Kind]] = {
    "products_cold": Kind(PRODUCT, _product, _matmul, _bytes_of_product),
    "products_warm": Kind(PRODUCT, _product, _matmul, _bytes_of_product, is_cold=False),
    "batched_products": Kind(("batch", *PRODUCT), _batched, _bmm, _bytes_of_product),
    "attention_causal": Kind(ATTENTION, _attention, _sdpa(causal=True), _bytes_of_attention),
    "attention_whole": Kind(NOT_CAUSAL, _attention, _sdpa(causal=False), _bytes_of_attention),
    "attention_cross": Kind(
        NOT_CAUSAL, lambda draw: _attention(draw, is_cross=True), _sdpa(causal=False), _bytes_of_attention
    ),
    "attention_decode": Kind(
        ATTENTION, lambda draw: _attention(draw, rows=1), _sdpa(causal=False), _bytes_of_attention
    ),
    "convolutions": Kind(
        ("images", "channels", "filters", "side", "window", *PRODUCT), _convolution, _conv,
        _bytes_of_convolution,
    ),
    **{f"rows_{name}": _row_kind(name) for name in OPS},
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="*", choices=KINDS, default=[*KINDS])
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try it without a GPU")
    given = parser.parse_args()
    import torch

    given.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60.0 * given.minutes
    try:
        with torch.inference_mode():
            rows = measure(torch, given.out, given.only, given.device, until, is_tiny=given.tiny)
    except KeyboardInterrupt:
        rows = "stopped"
    print(f"{given.out}: {rows} rows on {_name(torch, given.device)}")


def measure(
    torch: Any, out: Path, names: Sequence[str], device: str, until: float, *, is_tiny: bool = False
) -> int:
    """Writes rows of each kind in turn until the time is up; returns their number."""
    new = {"device": device, "dtype": torch.float32 if device == "cpu" else torch.bfloat16}
    drawn = {name: Drawn(seed, 1 / 64 if is_tiny else 1.0) for seed, name in enumerate(names)}
    for name in names:  # on with the sizes behind those in the file
        for _ in range(_rows_in(out / f"{name}.csv")):
            KINDS[name].draw(drawn[name])
    number = 0
    for name in itertools.cycle(names):
        if time.monotonic() >= until:
            return number
        kind = KINDS[name]
        sizes = kind.draw(drawn[name])
        try:
            seconds = _seconds(torch, kind, sizes, new) if kind.num_bytes(sizes) < MOST_BYTES else math.nan
        except (RuntimeError, ValueError) as error:  # out of memory, or no such kernel
            print(f"{name} {sizes}: {str(error).splitlines()[0][:100]}")
            seconds = math.nan
        append(out / f"{name}.csv", kind.columns, sizes | also(sizes), seconds)
        number += not math.isnan(seconds)
    return number


def also(of: Sizes) -> Sizes:
    """The product that a convolution lowers to, rows and keys of attention; nothing of others."""
    if "isl" in of:
        return {"rows": of["isl"], "keys": _keys(of)}
    if "window" not in of:
        return {}
    inner = of["channels"] * of["window"] ** 2
    return {"m": of["images"] * of["side"] ** 2, "n": of["filters"], "k": inner}


def _seconds(torch: Any, kind: Kind, sizes: Sizes, new: Any) -> float:
    """The median seconds of a call, of rounds of many."""
    copies = math.ceil(COLD_BYTES / max(kind.num_bytes(sizes), 1.0)) if kind.is_cold else 1
    is_gpu = new["device"] != "cpu"
    calls = [kind.make(torch, sizes, new) for _ in range(min(copies, MOST_COPIES if is_gpu else 2))]
    for call in calls:
        call()
    replay = _captured(torch, calls) if is_gpu else lambda: [call() for call in calls]
    number = max(1, math.ceil(LEAST_S / max(_round_s(torch, replay, 1, is_gpu=is_gpu), 1e-9)))
    rounds = [_round_s(torch, replay, number, is_gpu=is_gpu) for _ in range(ROUNDS)]
    return statistics.median(rounds) / number / len(calls)


def _captured(torch: Any, calls: Sequence[Call]) -> Callable[[], object]:
    """All calls as one CUDA graph, so that launches take no time; or one by one where that is refused."""
    graph = torch.cuda.CUDAGraph()
    try:
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
    except RuntimeError:
        return lambda: [call() for call in calls]
    return lambda: graph.replay()


def _round_s(torch: Any, replay: Callable[[], object], number: int, *, is_gpu: bool) -> float:
    if is_gpu:
        torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(number):
        replay()
    if is_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def _rows_in(path: Path) -> int:
    return sum(1 for _ in _lines(path))


def _lines(path: Path) -> Iterator[list[str]]:
    if path.exists():
        with path.open(newline="") as file:
            yield from itertools.islice(csv.reader(file), 1, None)


def append(path: Path, columns: Sequence[str], sizes: Sizes, seconds: float) -> None:
    """A row, written at once. What could not be measured is a comment, so that a later run draws on."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow([*columns, "milliseconds"])
        if math.isnan(seconds):
            file.write("# not measured\n")
        else:
            writer.writerow([*(sizes[name] for name in columns), f"{seconds * 1e3:.6g}"])


def _name(torch: Any, device: str) -> str:
    return str(torch.cuda.get_device_name()) if device != "cpu" else "the processor"


if __name__ == "__main__":
    main()
