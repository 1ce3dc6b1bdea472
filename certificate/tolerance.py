"""How far two computations of one number may differ.

The issuer's and the verifier's `exp`, `log` and `erfc` may differ in the last digits. One part in 10¹² is
thousands of such digits and nothing else: a σ, a distance or a sum too small by more is refused. Rounding to
the safe side has already happened when the number was made.
"""

from __future__ import annotations

RELATIVE = 1e-12
# An honest issuer does not overstate either; this only leaves room for another version's rounding up.
OVERSTATED = 1e-9


def understates(claimed: float, recomputed: float) -> bool:
    return claimed < recomputed * (1 - RELATIVE)


def overstates(claimed: float, recomputed: float) -> bool:
    return claimed > recomputed * (1 + OVERSTATED)


def agrees(claimed: float, recomputed: float) -> bool:
    return not understates(claimed, recomputed) and not overstates(claimed, recomputed)
