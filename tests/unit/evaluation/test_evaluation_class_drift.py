import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.evaluation.class_drift import divergence, measure_class_drift

histograms = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 1000), min_size=1)


@given(histograms, st.data())
def test_divergence_to_the_original_is_finite_and_zero_without_shift(
    original: dict[str, int], data: st.DataObject
) -> None:
    erased = {name: data.draw(st.integers(0, count)) for name, count in original.items()}
    if sum(erased.values()) == sum(original.values()):
        return
    drift = measure_class_drift(original, erased)
    assert math.isfinite(drift.kl_retained_original)
    assert drift.kl_retained_original >= 0
    vanished = any(count and not drift.retained[name] for name, count in original.items())
    assert (drift.kl_original_retained is None) == vanished
    assert measure_class_drift(original, {}).kl_retained_original == pytest.approx(0, abs=1e-12)


def test_a_known_value() -> None:
    assert divergence({"a": 3, "b": 1}, {"a": 1, "b": 1}) == pytest.approx(
        0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    )


def test_more_erased_than_there_is_is_refused() -> None:
    with pytest.raises(ValueError, match="more rows"):
        measure_class_drift({"a": 1}, {"a": 2})
