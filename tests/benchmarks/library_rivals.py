"""Rivals of the portfolio that call a library, beside those of ``go-opt bench``."""

from __future__ import annotations

from typing import Final

from go_opt.bench.rivals import RIVALS, Rival
from tests.benchmarks.cp_sat_rival import cp_sat
from tests.benchmarks.metis_rival import metis

LIBRARY_RIVALS: Final = RIVALS | {
    "metis": Rival("metis", metis),  # METIS, repaired by FIX and by slicing
    "cp-sat": Rival("cp-sat", cp_sat),  # CP-SAT on the placement, from the slicing
}
