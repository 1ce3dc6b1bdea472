"""Class drift of an erasure: class counts of D, F and R, and the divergences between their class mixes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ClassDrift:
    """Class counts before and after an erasure, with the two KL divergences in nats."""

    original: Mapping[str, int]
    erased: Mapping[str, int]
    retained: Mapping[str, int]
    kl_retained_original: float
    kl_original_retained: float | None  # None: a class vanished, so the divergence is infinite


def measure_class_drift(original: Mapping[str, int], erased: Mapping[str, int]) -> ClassDrift:
    """Compute the class drift from the class counts of all rows and of the erased ones.

    Raises ValueError if more rows of a class are erased than exist.
    """
    retained = {name: count - erased.get(name, 0) for name, count in original.items()}
    if any(count < 0 for count in retained.values()):
        raise ValueError("more rows erased than there are")
    forward = divergence(retained, original)
    assert forward is not None  # R is a subset of D, so every class of R has mass in D.
    return ClassDrift(dict(original), dict(erased), retained, forward, divergence(original, retained))


def divergence(p: Mapping[str, int], q: Mapping[str, int]) -> float | None:
    """Return KL(P‖Q) of two class histograms in nats, or None if it is infinite.

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
