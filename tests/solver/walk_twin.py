"""The walk by its definition: every feature is counted from the tables, for each cut anew."""

from __future__ import annotations

import math

import numpy as np

from go_opt.env import CostTables
from go_opt.env.cost.tables import hop_seconds_per_byte
from go_opt.env.kernels.numbering import kernel_seconds, number_kernels
from go_opt.model.graph import NO_PRODUCER, WEIGHT


class WalkTwin:
    """A graph along an order. Axes as in :mod:`go_opt.solver.walk.walk`."""

    def __init__(self, tables: CostTables, order: np.ndarray, fusion_group: np.ndarray) -> None:
        self.tables = tables
        self.kernel_of = number_kernels(order, fusion_group)
        self.kernel_s = kernel_seconds(tables, self.kernel_of)
        self.num_kernels, self.num_chips = self.kernel_s.shape[1], tables.num_chips
        self.hop_s_per_byte = hop_seconds_per_byte(tables)

    def readers(self, tensor: int) -> set[int]:
        reads = slice(self.tables.reader_ptr[tensor], self.tables.reader_ptr[tensor + 1])
        return {int(self.kernel_of[op]) for op in self.tables.reader_op[reads]}

    def activations(self):
        """Tensor, producer, last reader in another kernel (or -1)."""
        for k in np.flatnonzero(self.tables.tensor_kind != WEIGHT):
            if self.tables.tensor_producer[k] != NO_PRODUCER:
                home = int(self.kernel_of[self.tables.tensor_producer[k]])
                yield int(k), home, max(self.readers(k) - {home}, default=-1)

    def crossing(self, sizes: np.ndarray, cut: int) -> float:
        return float(sum(sizes[k] for k, home, last in self.activations() if home < cut <= last))

    def most_live(self, start: int, end: int) -> float:
        is_output, live = self.tables.tensor_is_output, [0.0]
        for kernel in range(start, end):
            live.append(
                sum(
                    self.tables.stored_bytes[k]
                    for k, home, last in self.activations()
                    if start <= home <= kernel and (is_output[k] or last >= kernel)
                )
            )
        return float(max(live))

    def weights(self, start: int, end: int) -> float:
        read = [
            k
            for k in np.flatnonzero(self.tables.tensor_kind == WEIGHT)
            if any(start <= kernel < end for kernel in self.readers(k))
        ]
        return float(self.tables.stored_bytes[read].sum())

    def features(self, chip: int, start: int, kernel: int) -> np.ndarray:
        """[F] of a cut before ``kernel`` while ``chip`` is open from kernel ``start``."""
        fastest_s, on_chip_s = self.kernel_s.min(axis=0), self.kernel_s[self.tables.chip_kind[chip]]
        load_s, next_s = on_chip_s[start:kernel].sum(), on_chip_s[kernel]
        share_s = max(fastest_s[start:].sum() / (self.num_chips - chip), 1e-300)
        sent = self.tables.tensor_bytes
        link_s = self.crossing(sent, kernel) * self.hop_s_per_byte[chip]
        traffic = math.log10(link_s * self.num_chips / max(fastest_s.sum(), 1e-300) + 0.01)
        memory = max(1.0, float(self.tables.sram_bytes[chip]))
        weights = self.weights(start, kernel + 1) / memory
        entered, here, after = (
            self.crossing(self.tables.stored_bytes, cut) / memory for cut in (start, kernel, kernel + 1)
        )
        most = self.most_live(start, kernel) / memory
        return np.array(
            [
                1.0,
                min(load_s / share_s, 4.0),
                min((load_s + next_s) / share_s, 4.0),
                float(load_s + next_s / 2 > share_s),
                traffic,
                min(load_s / share_s, 3.0) * traffic,
                min(weights, 3.0),
                float(weights > 0.9),
                float(self.crossing(sent, kernel) <= self.crossing(sent, kernel - 1)),
                min(most + 2 * (entered + here), 3.0),
                float(max(most, here) + 2 * (entered + after) > 0.9),
                min(2 * here, 3.0),
            ]
        )

    def chances(self, weights: np.ndarray, head: np.ndarray, is_cut: np.ndarray):
        """Kernel, features, and chance of a cut before it, for each decision of a walk with cuts [M]."""
        prior = math.log(self.num_chips / max(self.num_kernels - self.num_chips, self.num_chips + 1))
        chip = start = 0
        for kernel in range(1, self.num_kernels):
            if chip < self.num_chips - 1:
                features = self.features(chip, start, kernel)
                logit = float(weights @ features) + head[kernel] + prior
                yield kernel, features, 1.0 / (1.0 + math.exp(-logit))
            if is_cut[kernel]:
                chip, start = chip + 1, kernel
