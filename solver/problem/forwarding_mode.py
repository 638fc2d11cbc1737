"""How tensors are treated that pass a chip between their producer's chip and a reader's chip.

A tensor with home chip a and farthest reader chip c > a passes chips a + 1 … c - 1,
whether or not they read it too.

* ``adjacent``: no tensor passes a chip, the triangle rule in its adjacent form;
* ``relayed``: every tensor that passes a chip is copied there (design section 8);
* ``free``: tensors pass at no cost: targets without a triangle rule, and the relaxation
  that bounds use.
"""

from __future__ import annotations

from typing import Final, Literal

ForwardingMode = Literal["adjacent", "relayed", "free"]
ADJACENT, RELAYED, FREE = range(3)  # for compiled kernels
FORWARDING_CODE: Final[dict[ForwardingMode, int]] = {"adjacent": ADJACENT, "relayed": RELAYED, "free": FREE}
