"""Rules of rewriting that are found, not written: graphs of a few ops that compute the same.

Run: PYTHONPATH=. python tests/benchmarks/generate_rewrites.py [--ops 3] [--most N]

As TASO does (Jia et al., SOSP 2019): all graphs of up to so many ops over three matrices and a row are
enumerated, and evaluated on random numbers of a prime field, where sums have no rounding. Graphs with equal
results are candidates. Each is evaluated again over a second field, with other numbers and sizes: a
polynomial of degree d that is not zero is zero at a random point with a probability of at most d / 2**31
(Schwartz, Zippel).

A candidate is subsumed if it follows from rules with fewer ops: by replacing variables, or inside a larger
graph. What is left is printed, with the names of the rules that the product or the literature has. Asserts
that these are all found.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

PRIMES: Final = (2**31 - 1, 2**31 - 19)
SIZES: Final = (4, 6)  # of the matrices, even
VARIABLES: Final = "xyzv"  # the last one is a row
Matrix = NDArray[np.int64]


class Term(NamedTuple):
    """A graph with one result: a variable, or an op of other graphs, by their numbers."""

    op: str
    operands: tuple[int, ...]
    ops: frozenset[int]  # itself and what it reads, but for variables


def _product(a: Matrix, b: Matrix, prime: int) -> Matrix:
    return (a[:, :, None] * b[None] % prime).sum(1) % prime


# Halves and concatenations are of rows and of columns; a function of each element is some polynomial.
UNARY: Final[dict[str, Callable[[Matrix, int], Matrix]]] = {
    "f": lambda a, p: (a * a % p * a + 3 * a + 7) % p,
    "transpose": lambda a, p: a.T,
    "top": lambda a, p: a[: len(a) // 2],
    "bottom": lambda a, p: a[len(a) // 2 :],
    "left": lambda a, p: a[:, : a.shape[1] // 2],
    "right": lambda a, p: a[:, a.shape[1] // 2 :],
}
BINARY: Final[dict[str, Callable[[Matrix, Matrix, int], Matrix]]] = {
    "product": _product,
    "turned": lambda a, b, p: _product(a.T, b, p),  # reads the rows of its first operand as columns
    "add": lambda a, b, p: (a + b) % p,
    "mul": lambda a, b, p: a * b % p,
    "scale": lambda a, b, p: a * b % p,  # of columns, by a row
    "shift": lambda a, b, p: (a + b) % p,
    "rows": lambda a, b, p: np.concatenate([a, b]),
    "columns": lambda a, b, p: np.concatenate([a, b], 1),
}
COMMUTATIVE: Final = ("add", "mul")

# What the product has, and what the literature lists: both sides compute the same.
KNOWN: Final = {
    "merge (siblings)": ("product(x,y)", "left(product(x,columns(y,z)))"),
    "batch (shared weights)": ("product(x,y)", "top(product(rows(x,z),y))"),
    "fold (a scale)": ("scale(product(x,y),v)", "product(x,scale(y,v))"),
    "transposes taken over, read": ("product(transpose(x),y)", "turned(x,y)"),
    "transposes taken over, written": ("transpose(product(x,y))", "turned(y,transpose(x))"),
    "transposes cancelled": ("transpose(transpose(x))", "x"),
    "concat and split cancelled": ("top(rows(x,y))", "x"),
    "split and concat cancelled": ("rows(top(x),bottom(x))", "x"),
    "products re-associated": ("product(product(x,y),z)", "product(x,product(y,z))"),
    "branches summed (RepVGG)": ("add(product(x,y),product(x,z))", "product(x,add(y,z))"),
    "element-wise op before a concat": ("f(rows(x,y))", "rows(f(x),f(y))"),
    "element-wise op before a transpose": ("f(transpose(x))", "transpose(f(x))"),
    "element-wise op before a split": ("top(f(x))", "f(top(x))"),
    "transpose of a product": ("transpose(product(x,y))", "product(transpose(y),transpose(x))"),
}


class Generator:
    """All graphs of up to ``most`` ops, by number; results over each field."""

    def __init__(self, most: int) -> None:
        rng = np.random.default_rng(0)
        self.given = [
            {name: rng.integers(1, prime, (1 if name == "v" else size, size)) for name in VARIABLES}
            for prime, size in zip(PRIMES, SIZES, strict=True)
        ]
        self.terms: list[Term] = []
        self.number: dict[tuple[str, tuple[int, ...]], int] = {}
        self.values: list[Matrix] = []
        for name in VARIABLES:
            self._add(name, ())
        self.by_size: list[list[int]] = [list(range(len(VARIABLES)))]
        for size in range(1, most + 1):
            self.by_size.append([n for row in self._rows(size) if (n := self._add(*row)) is not None])
        self.same = list(range(len(self.terms)))  # as a union-find
        self.of_op: dict[str, list[int]] = defaultdict(list)
        self.readers: dict[int, list[int]] = {n: [] for n in range(len(self.terms))}
        self.seen: dict[tuple, int] = {}  # by op and roots of what it reads
        for n, term in enumerate(self.terms):
            self.of_op[term.op].append(n)
            self.seen[self._key(n)] = n
            for k in {*term.operands}:
                self.readers[k].append(n)

    def _rows(self, size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        before = self.by_size[size - 1]
        for a in list(before):
            for op in UNARY:
                yield op, (a,)
            inside = [*range(len(VARIABLES)), *self.terms[a].ops]
            for b in inside:
                yield from self._pairs(a, b)
        smaller = [(i, size - 1 - i) for i in range(1, size) if 0 < i <= size - 1 - i]
        for i, j in smaller:  # two graphs that may share ops
            for a in self.by_size[i]:
                for b in self.by_size[j]:
                    if b not in self.terms[a].ops and a not in self.terms[b].ops:
                        yield from self._pairs(a, b)

    @staticmethod
    def _pairs(a: int, b: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        for op in BINARY:
            if op in COMMUTATIVE:
                yield op, (min(a, b), max(a, b))
            else:
                yield from ((op, pair) for pair in dict.fromkeys([(a, b), (b, a)]))

    def _add(self, op: str, operands: tuple[int, ...]) -> int | None:
        if (op, operands) in self.number:
            return None
        value = self._applied(op, [self.values[n] for n in operands], 0)
        if value is None:
            return None
        n = self.number[op, operands] = len(self.terms)
        ops = frozenset[int]().union(*(self.terms[k].ops for k in operands))
        self.terms.append(Term(op, operands, ops | {n} if operands else ops))
        self.values.append(value)
        return n

    def _applied(self, op: str, values: Sequence[Matrix], field: int) -> Matrix | None:
        """The result of an op; None where shapes do not fit."""
        prime = PRIMES[field]
        if op in self.given[field]:
            return self.given[field][op]
        if op in UNARY:
            (a,) = values
            is_odd = (op in ("top", "bottom") and len(a) % 2) or (op in ("left", "right") and a.shape[1] % 2)
            return None if is_odd else UNARY[op](a, prime)
        a, b = values
        fits = {
            "product": a.shape[1] == b.shape[0],
            "turned": a.shape[0] == b.shape[0],
            "scale": a.shape[1] == b.shape[1] and len(a) > len(b) == 1,
            "shift": a.shape[1] == b.shape[1] and len(a) > len(b) == 1,
            "rows": a.shape[1] == b.shape[1],
            "columns": a.shape[0] == b.shape[0],
        }
        return BINARY[op](a, b, prime) if fits.get(op, a.shape == b.shape) else None

    def candidates(self) -> tuple[int, list[tuple[int, int]], int]:
        """Distinct functions; pairs of graphs that compute the same, the smallest first; pairs refuted."""
        groups: dict[tuple, list[int]] = defaultdict(list)
        for n, value in enumerate(self.values):
            groups[(*value.shape, value.tobytes())].append(n)
        pairs, refuted = [], 0
        seconds: dict[int, Matrix | None] = {}
        for group in groups.values():
            first, *others = sorted(group, key=lambda n: len(self.terms[n].ops))
            for other in others:
                one, two = (self._second(n, seconds) for n in (first, other))
                if one is None or two is None or not np.array_equal(one, two):
                    refuted += 1
                else:
                    pairs.append((other, first))
        pairs.sort(key=lambda pair: (sum(map(self._size, pair)), -len(self._variables(pair[0]))))
        return len(groups), pairs, refuted

    def _size(self, n: int) -> int:
        """The ops of a graph, each as often as it is read: with more variables, none is read twice."""
        return bool(self.terms[n].operands) + sum(map(self._size, self.terms[n].operands))

    def _variables(self, n: int) -> frozenset[str]:
        op, operands, _ = self.terms[n]
        return (
            frozenset({op}).union(*map(self._variables, operands))
            if op in VARIABLES
            else (frozenset[str]().union(*map(self._variables, operands)))
        )

    def _second(self, n: int, known: dict[int, Matrix | None]) -> Matrix | None:
        if n not in known:
            read = [self._second(k, known) for k in self.terms[n].operands]
            values = [one for one in read if one is not None]
            known[n] = self._applied(self.terms[n].op, values, 1) if len(values) == len(read) else None
        return known[n]

    def root(self, n: int) -> int:
        while self.same[n] != n:
            self.same[n] = self.same[self.same[n]]
            n = self.same[n]
        return n

    def rules(self, pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """The pairs that do not follow from those before."""
        kept: list[tuple[int, int]] = []
        for pair in pairs:
            if self.root(pair[0]) != self.root(pair[1]):
                kept.append(pair)
                self._apply(*pair)
                self._apply(*reversed(pair))
        return kept

    def _apply(self, left: int, right: int) -> None:
        """Each graph that is an instance of one side is the same as that of the other, if enumerated."""
        if self.terms[left].op in VARIABLES:
            return
        for n in self.of_op[self.terms[left].op]:
            for found in self._matches(left, n, {}):
                made = self._instance(right, found)
                if made is not None:
                    self._join(n, made)
                    break

    def _matches(self, pattern: int, n: int, found: dict[str, int]) -> Iterator[dict[str, int]]:
        """The graphs that variables of a pattern stand for."""
        op, operands, _ = self.terms[pattern]
        if op in VARIABLES:
            if found.get(op, n) == n:
                yield found | {op: n}
            return
        if self.terms[n].op != op:
            return
        given = self.terms[n].operands
        for order in (given, given[::-1]) if op in COMMUTATIVE else (given,):
            left = [found]
            for part, one in zip(operands, order, strict=True):
                left = [new for known in left for new in self._matches(part, one, known)]
            yield from left

    def _instance(self, pattern: int, found: dict[str, int]) -> int | None:
        op, operands, _ = self.terms[pattern]
        if op in VARIABLES:
            return found.get(op)
        made = [self._instance(part, found) for part in operands]
        known = tuple(one for one in made if one is not None)
        if op in COMMUTATIVE:
            known = tuple(sorted(known))
        return self.number.get((op, known)) if len(known) == len(made) else None

    def _join(self, one: int, other: int) -> None:
        """Two graphs are the same, and so are ops of them (congruence)."""
        left = [(one, other)]
        while left:
            a, b = map(self.root, left.pop())
            if a == b:
                continue
            if len(self.readers[a]) < len(self.readers[b]):
                a, b = b, a
            self.same[b] = a
            for n in self.readers[b]:
                left.append((n, self.seen.setdefault(self._key(n), n)))
            self.readers[a] += self.readers.pop(b)

    def _key(self, n: int) -> tuple:
        op, operands, _ = self.terms[n]
        read = [self.root(k) for k in operands]
        return (op, *(sorted(read) if op in COMMUTATIVE else read))

    def text(self, n: int) -> str:
        op, operands, _ = self.terms[n]
        return f"{op}({','.join(map(self.text, operands))})" if operands else op

    def parsed(self, text: str) -> int:
        """The number of a graph."""
        if text in VARIABLES:
            return self.number[text, ()]
        op, rest = text[:-1].split("(", 1)
        parts, depth = [""], 0
        for letter in rest:
            depth += {"(": 1, ")": -1}.get(letter, 0)
            if letter == "," and depth == 0:
                parts.append("")
            else:
                parts[-1] += letter
        operands = [self.parsed(part) for part in parts]
        return self.number[op, tuple(sorted(operands) if op in COMMUTATIVE else operands)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ops", type=int, default=3)
    parser.add_argument("--most", type=int, default=60, help="rules to print")
    arguments = parser.parse_args()
    began_s = time.process_time()
    found = Generator(arguments.ops)
    functions, pairs, refuted = found.candidates()
    together = dict(pairs)  # graph -> the smallest that computes the same
    for name, sides in KNOWN.items():
        if max(text.count("(") for text in sides) <= arguments.ops:
            numbers = [found.parsed(text) for text in sides]
            one, two = (together.get(n, n) for n in numbers)
            assert one == two, name
            print(f"found again: {name}: {' = '.join(sides)}")
    kept = found.rules(pairs)
    print(f"{len(found.terms)} graphs, {functions} functions, {len(pairs)} candidates, {refuted} refuted")
    print(f"{len(kept)} rules that do not follow from smaller ones, {time.process_time() - began_s:.0f} s")
    for left, right in kept[: arguments.most]:
        print(f"  {found.text(left)} = {found.text(right)}")


if __name__ == "__main__":
    main()
