"""The log-probability of chips drawn unit by unit among their open chips, and its gradient.

    log p = Σ_u (l[u, drawn[u]] - log Σ_{c open to u} exp(l[u, c]))

for rows ``l`` of any scale; a row without mass on the open chips counts as uniform, as in
:mod:`go_opt.solver.propagation.modes`. Axes: ``S`` samples, ``U`` units, ``D`` chips, ``W`` words of a
set of chips.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, WordArray
from go_opt.common.compiling import uncounted
from go_opt.solver.propagation.propagators.domains import has_chip


class Choices(NamedTuple):
    """The drawn chips, the open chips they were drawn from, and the rows."""

    log_probs: FloatArray  # [U, D] of each unit on each chip, any scale, -inf is no mass
    drawn: IntArray  # [S, U] chips in 0 … D - 1
    open_chips: WordArray  # [S, U, W] sets of chips, none empty


def choice_log_prob(choices: Choices) -> tuple[FloatArray, FloatArray]:
    """Returns the log-probability [S] of each sample, and the log-mass [S, U] of each row's open chips."""
    log_prob = np.empty(len(choices.drawn))
    log_mass = np.empty(choices.drawn.shape)
    _sum_choices(choices, log_prob, log_mass)
    return log_prob, log_mass


def choice_gradient(choices: Choices, log_mass: FloatArray, weight: FloatArray) -> FloatArray:
    """Returns the derivative [U, D] of ``Σ_s weight[s] log_prob[s]`` by the rows; ``weight`` is [S].

    Rows without mass on the open chips contribute zero.
    """
    gradient = np.zeros_like(choices.log_probs)
    _add_gradients(choices, log_mass, weight, gradient)
    return gradient


@uncounted
def _sum_choices(choices: Choices, log_prob: FloatArray, log_mass: FloatArray) -> None:
    rows, drawn, open_chips = choices.log_probs, choices.drawn, choices.open_chips
    num_units, num_chips = rows.shape
    for s in range(len(drawn)):
        total = 0.0
        for unit in range(num_units):
            row = rows[unit]
            chips = open_chips[s, unit]
            top = -np.inf
            num_open = 0
            for chip in range(num_chips):
                if has_chip(chips, chip):
                    num_open += 1
                    top = max(top, row[chip])
            if top == -np.inf:
                log_mass[s, unit] = -np.inf
                total -= np.log(np.float64(num_open))
                continue
            mass = 0.0
            for chip in range(num_chips):
                if has_chip(chips, chip):
                    mass += np.exp(row[chip] - top)
            log_mass[s, unit] = top + np.log(mass)
            total += (row[drawn[s, unit]] - top) - np.log(mass)
        log_prob[s] = total


@uncounted
def _add_gradients(choices: Choices, log_mass: FloatArray, weight: FloatArray, gradient: FloatArray) -> None:
    rows, drawn, open_chips = choices.log_probs, choices.drawn, choices.open_chips
    num_units, num_chips = rows.shape
    for s in range(len(drawn)):
        if weight[s] == 0.0:
            continue
        for unit in range(num_units):
            row = rows[unit]
            chips = open_chips[s, unit]
            if log_mass[s, unit] == -np.inf:
                continue
            for chip in range(num_chips):
                if has_chip(chips, chip):
                    gradient[unit, chip] -= weight[s] * np.exp(row[chip] - log_mass[s, unit])
            gradient[unit, drawn[s, unit]] += weight[s]
