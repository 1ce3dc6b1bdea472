"""Distribution shift of a deletion set: class counts of D, F and R, and the two divergences."""

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Shift:
    original: Mapping[str, int]
    erased: Mapping[str, int]
    retained: Mapping[str, int]
    kl_retained_original: float
    kl_original_retained: float | None  # None: a class vanished, the divergence is infinite


def measure(original: Mapping[str, int], erased: Mapping[str, int]) -> Shift:
    retained = {name: count - erased.get(name, 0) for name, count in original.items()}
    if any(count < 0 for count in retained.values()):
        raise ValueError("more rows erased than there are")
    forward = divergence(retained, original)
    assert forward is not None  # R is a part of D: whatever has mass in R has mass in D
    return Shift(dict(original), dict(erased), retained, forward, divergence(original, retained))


def divergence(p: Mapping[str, int], q: Mapping[str, int]) -> float | None:
    """KL(P‖Q) of two class histograms, in nats; None when it is infinite.

    >>> divergence({"a": 1, "b": 1}, {"a": 1, "b": 1})
    0.0
    >>> divergence({"a": 1}, {"b": 1}) is None
    True
    """
    total_p, total_q = sum(p.values()), sum(q.values())
    terms = []
    for name, count in p.items():
        if count == 0:
            continue
        if not q.get(name):
            return None
        terms.append(count / total_p * math.log(count * total_q / (total_p * q[name])))
    return max(math.fsum(terms), 0.0)
