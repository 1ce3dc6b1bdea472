"""Room for one more release: the share of δ for measuring curvature, the statable ε, and the cap."""

from dataclasses import replace
from typing import Any

import pytest

from app.db.states import HeldReason
from lethe.certificate.predicate import Lifetime
from lethe.certificate.privacy import NOISE_RESIDUAL, SMALLEST_DELTA
from lethe.policy import Policy
from worker.batch.lifetime import ChainHead, Terms, extend, reserve
from worker.context import Refusal

DIGEST = "ab" * 32
SHIFT = 0.25
TERMS = Terms("B1", "proved", SHIFT, 0.0, NOISE_RESIDUAL)
RETRAIN = Terms("retrain", "proved", 0.0, 0.0, 0.0)


def policy(**values: Any) -> Policy:
    return Policy.model_validate({"epsilon": 1e-4, "delta": 1e-5, "lifetime_epsilon": 8.0} | values)


def head_after(releases: int, terms: Terms = TERMS, **values: Any) -> ChainHead | None:
    """Return the head of a chain of `releases` releases by the same terms."""
    head: ChainHead | None = None
    for _ in range(releases):
        head = ChainHead(extend(policy(**values), head, "tr", terms), DIGEST)
    return head


def reserved(outcome: Lifetime | Refusal) -> Lifetime:
    assert isinstance(outcome, Lifetime), outcome
    return outcome


def refused(outcome: Lifetime | Refusal) -> str:
    assert isinstance(outcome, Refusal), outcome
    assert outcome.reason is HeldReason.BUDGET
    return outcome.detail


def test_the_first_release_starts_the_sum() -> None:
    first = reserved(reserve(policy(), None, "tr", TERMS))
    assert (first.index, first.previous_certificate_digest, first.running_shift) == (0, None, SHIFT)


def test_a_release_adds_to_the_sum_and_a_retrain_starts_a_new_one() -> None:
    head = head_after(3)
    fourth = reserved(reserve(policy(), head, "tr", TERMS))
    assert (fourth.index, fourth.previous_certificate_digest) == (3, DIGEST)
    assert fourth.running_shift == pytest.approx(2 * SHIFT)
    fresh = reserved(reserve(policy(), head, "retrain", RETRAIN))
    assert (fresh.index, fresh.running_shift, fresh.epsilon_total) == (3, 0.0, 0.0)


def test_a_release_up_to_the_cap_fits_and_one_past_it_does_not() -> None:
    total = reserved(reserve(policy(), None, "tr", TERMS)).epsilon_total
    assert total is not None
    reserved(reserve(policy(lifetime_epsilon=total), None, "tr", TERMS))
    detail = refused(reserve(policy(lifetime_epsilon=total * 0.999), None, "tr", TERMS))
    assert detail.startswith(f"one more release would bring ε to {total:.4g}, past the cap of ")


def test_past_the_cap_a_retrain_still_fits() -> None:
    head = head_after(1)
    tight = policy(lifetime_epsilon=1e-3)
    refused(reserve(tight, head, "tr", TERMS))
    reserved(reserve(tight, head, "retrain", RETRAIN))


def test_a_heuristic_release_states_no_epsilon_and_meets_no_cap() -> None:
    terms = replace(TERMS, rule="B2", assurance="heuristic", shift=100.0)
    assert reserved(reserve(policy(lifetime_epsilon=1e-3), None, "tr", terms)).epsilon_total is None


def test_measuring_curvature_may_use_all_of_delta_but_the_smallest() -> None:
    delta = 1e-5
    fits = replace(TERMS, rule="B2", assurance="conditional", failure_probability=delta / 2)
    reserved(reserve(policy(delta=delta, lifetime_epsilon=900.0), None, "tr", fits))
    head = head_after(1, fits, lifetime_epsilon=900.0)
    used_up = refused(reserve(policy(delta=delta, lifetime_epsilon=900.0), head, "tr", fits))
    assert used_up == "measuring the curvature once more would use up δ"
    most = replace(fits, failure_probability=delta - SMALLEST_DELTA / 2)
    assert "use up δ" in refused(reserve(policy(delta=delta), None, "tr", most))


def test_what_a_chain_has_spent_on_curvature_does_not_count_against_a_retrain() -> None:
    terms = replace(TERMS, rule="B2", assurance="conditional", failure_probability=9e-6)
    head = head_after(1, terms, lifetime_epsilon=900.0)
    refused(reserve(policy(lifetime_epsilon=900.0), head, "tr", terms))
    reserved(reserve(policy(), head, "retrain", RETRAIN))


def test_where_no_epsilon_can_be_stated_the_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def unstatable(*_: Any, **__: Any) -> Lifetime:
        raise ValueError("no ε")

    monkeypatch.setattr("worker.batch.lifetime.extend_lifetime", unstatable)
    detail = refused(reserve(policy(), None, "tr", TERMS))
    assert detail == "after one more release no ε could be stated at this δ"
