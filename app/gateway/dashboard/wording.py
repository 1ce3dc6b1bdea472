"""The dashboard's wording: names and explanations of states, and numbers formatted for people."""

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from app.core.clock import now
from app.db.states import (
    BatchStep,
    EventKind,
    ModelState,
    SealReason,
    TaskOutcome,
    VersionState,
)
from app.gateway.sentences import BATCH, ERASURE, HELD, States
from lethe.certificate.privacy import loss_exceeds, shift_for
from lethe.certificate.vocabulary import ASSURANCES

__all__ = ["BATCH", "ERASURE", "HELD", "States"]

MODEL: States = {
    ModelState.UPLOADING: ("Draft", "The data and weights are still being uploaded."),
    ModelState.VALIDATING: ("Being checked", "A worker is checking the data and weights."),
    ModelState.READY: ("Ready", "Lethe can erase people from this model."),
    ModelState.REJECTED: ("Rejected", "The data or weights cannot be used. The reasons are listed below."),
    ModelState.RETIRED: ("Retired", "The data and weights are deleted. The certificates remain."),
}
VERSION: States = {
    VersionState.CURRENT: ("Current", "use this version"),
    VersionState.SUPERSEDED: ("Superseded", "no longer available"),
    VersionState.PURGED: ("Purged", "deleted"),
}
OUTCOME: Mapping[str, str] = {
    TaskOutcome.ERASED: "Erased from the model",
    TaskOutcome.ERASED_OUTSIDE_TRAINING: "Found only outside the training data, and deleted there",
    TaskOutcome.NOT_IN_TRAINING_SET: "No data found",
    TaskOutcome.MODEL_NOT_REGISTERED: "The model was not registered",
}
STEPS: Mapping[str, str] = {
    BatchStep.RESOLVE: "Find the rows",
    BatchStep.SOLVE: "Remove their influence",
    BatchStep.CERTIFY: "Check the bound",
    BatchStep.RELEASE: "Add noise and sign",
    BatchStep.PURGE: "Delete the old data",
}
SEAL_REASON: Mapping[str, str] = {
    SealReason.COUNT: "enough people were waiting",
    SealReason.AGE: "the oldest request had waited long enough",
    SealReason.DEADLINE: "a deadline was near",
    SealReason.FLUSH: "someone started it by hand",
    SealReason.APPEND: "new rows were added to the model",
}
EVENT: Mapping[str, str] = {
    EventKind.SEALED: "Sealed",
    EventKind.PROGRESS: "Solver step",
    EventKind.SMALL_BATCH: "Smaller than the policy's minimum",
    EventKind.STATE: "State",
    EventKind.STEP: "Step started",
    EventKind.ALERT: "Class drift above the policy's limit",
    EventKind.DELAYED: "Delayed by a fault of the infrastructure; it is retried by itself",
    EventKind.HELD: "Put on hold",
    EventKind.APPROVE: "Someone approved the version on hold",
    EventKind.DISCARD: "Someone discarded the version on hold",
    EventKind.DISCARDED: "Version on hold destroyed",
    EventKind.RETRY: "Someone tried the batch again",
    EventKind.PUBLISHED: "Published",
    EventKind.COMPLETED: "Completed",
    EventKind.FAILED: "Failed",
}
# What someone did, after their name.
DECISION: Mapping[str, str] = {
    EventKind.APPROVE: "approved the version on hold",
    EventKind.DISCARD: "discarded the version on hold",
    EventKind.RETRY: "tried the batch again",
    EventKind.HELD: "cancelled the batch",
    EventKind.FAILED: "cancelled the batch",
}
MECHANISM = {
    "tr": "Unlearned",
    "retrain": "Retrained",
    "discarded": "Discarded draw",
    "tr-paper": "Unlearned (trust-region baseline)",
    "guo2020": "Unlearned (baseline of Guo et al. 2020)",
    "zhang2024": "Unlearned (baseline of Zhang et al. 2024)",
}
ASSUMPTION = {
    "declared-origins": "Features, constants and policy do not depend on anyone who can be erased",
    "rows-represented-independently": "The features of a row do not depend on other rows",
    "module-treats-rows-alone": "The plug-in's network computes each row by itself",
    "modelled-rounding": "Rounding errors are no larger than modelled",
    "random-generator": "The random numbers for the noise are as good as truly random",
    "floating-point-noise": "An earlier release used floating-point noise",
    "features-look-standardised": "The features were not standardised with the erased records",
    "choices-after-refusal": "A choice made after a refusal does not depend on the erased records",
    "retraining-reaches-reference": "Retraining would reach the same model",
    "curvature-rounding": "Rounding errors do not distort the measured curvature",
    "sampled-hessian-lipschitz": "A sampled constant is used as if it were a bound",
    "published-analysis": "The analysis in the method's publication is correct",
}
# One plain sentence for each symbol, shown wherever the symbol appears.
INPUT = {"vector": "vectors of numbers", "image": "images", "text": "texts"}
SYMBOL = {
    "epsilon": "ε limits how much the file can reveal about the erased people. Smaller is better, and 0 "
    "reveals nothing.",
    "delta": "δ is a small extra allowance on every probability, on top of what ε permits.",
    "distance": "Δ, the certified distance, bounds how far the current weights are from a model trained "
    "without the erased records. This step is done when Δ falls to the target Δ* or below.",
    "target": "Δ* is the largest distance to a model trained without the erased records that the noise is "
    "made to hide.",
    "sigma": "σ is the standard deviation of the random noise added to the weights. It hides that distance.",
    "shift": "s = Δ*/σ compares the distance that may remain with the noise that hides it. Smaller is "
    "better.",
    "gradient": "‖g‖, the gradient norm, shows how far the solver still has to go.",
}
_TONES = {
    "completed": "good",
    "ready": "good",
    "current": "good",
    "failed": "bad",
    "rejected": "bad",
    "held": "warn",
    "running": "live",
    "purging": "live",
    "validating": "live",
}


def tone_of(state: str) -> str:
    """Return the CSS class that colours a state."""
    return _TONES.get(state, "plain")


def name_of(states: States, state: str) -> str:
    """Return the name of a state. One without an entry is shown by its own name."""
    return states[state][0] if state in states else state.replace("_", " ").capitalize()


def meaning_of(states: States, state: str) -> str:
    """Return the explanation of a state, or nothing if it has none."""
    return states[state][1] if state in states else ""


def describe_event(kind: str, data: Mapping[str, Any]) -> str:
    """Return one line about an event of a batch.

    >>> describe_event("step", {"step": "solve"}), describe_event("retry", {})
    ('Step started: remove their influence', 'Someone tried the batch again')
    """
    label = EVENT.get(kind, kind.replace("_", " ").capitalize())
    if "by" in data:
        return _describe_decision(kind, label, data)
    if "step" in data:
        detail = STEPS.get(data["step"], data["step"]).lower()
    elif "state" in data:
        detail = name_of(BATCH, data["state"]).lower()
    elif "because" in data:
        detail = SEAL_REASON.get(data["because"], data["because"])
    else:
        return label
    return f"{label}: {detail}"


def _describe_decision(kind: str, label: str, data: Mapping[str, Any]) -> str:
    """
    >>> _describe_decision("approve", "", {"by": "Ana", "why": "the score is fine"})
    'Ana approved the version on hold: “the score is fine”'
    """
    done = DECISION.get(kind, label)
    return f"{data['by']} {done}" + (f": “{data['why']}”" if data.get("why") else "")


def describe_deadlines(completed: int, in_time: int, overdue: int) -> str:
    """Say how many requests of a month met their deadline. `overdue` requests are open after theirs.

    >>> describe_deadlines(4, 4, 0), describe_deadlines(4, 4, 1)
    ('Every deadline was met.', 'Every completed request met its deadline.')
    >>> describe_deadlines(2, 1, 1), describe_deadlines(0, 0, 1)
    ('50 % of the 2 completed requests met the deadline.', 'No request was completed in this month.')
    """
    if not completed:
        return "No request was completed in this month."
    if in_time < completed:
        share = f"{100 * in_time // completed} %"  # rounded down: 249 of 250 is not all of them
        return f"{share} of the {format_count(completed, 'completed request')} met the deadline."
    return "Every completed request met its deadline." if overdue else "Every deadline was met."


def describe_action(action: str) -> str:
    """Return an action of the audit log in words.

    >>> describe_action("erasure.requested"), describe_action("api-key.created")
    ('Erasure requested', 'API key created')
    """
    text = action.replace(".", " ").replace("-", " ")
    return (text[0].upper() + text[1:]).replace("Api key", "API key")


def describe_progress(progress: Mapping[str, Any]) -> str:
    """Say how far the features or the advice of a model are.

    >>> describe_progress({"step": "features", "part": "part0", "percent": 42.0, "eta_seconds": 31.0})
    'Computing the features of part0: 42 % done, about 31 seconds left.'
    >>> describe_progress({"step": "advice", "percent": 0, "eta_seconds": None})
    'Measuring on the holdout for the advice: 0 % done.'
    """
    if progress["step"] == "features":
        task = f"Computing the features of {progress['part']}"
    else:
        task = "Measuring on the holdout for the advice"
    left = progress["eta_seconds"]
    return f"{task}: {progress['percent']:.0f} % done" + (
        "." if left is None else f", about {format_duration(left)} left."
    )


def format_day(at: datetime) -> str:
    """Return the day, for columns whose heading names the time zone.

    >>> from datetime import UTC
    >>> format_day(datetime(2027, 1, 5, 9, 30, tzinfo=UTC))
    '5 Jan 2027'
    """
    return f"{at.day} {at:%b %Y}"


def format_moment(at: datetime) -> str:
    """Return the date and time with the time zone.

    >>> from datetime import UTC
    >>> format_moment(datetime(2027, 1, 5, 9, 30, tzinfo=UTC))
    '5 Jan 2027, 09:30 UTC'
    """
    return f"{at.day} {at:%b %Y, %H:%M} UTC"


def format_relative(at: datetime) -> str:
    """Return the distance from now in the largest unit that fits.

    >>> from datetime import timedelta
    >>> format_relative(now() + timedelta(days=3, hours=1)), format_relative(now() - timedelta(hours=2.1))
    ('in 3 days', '2 hours ago')
    """
    seconds = (at - now()).total_seconds()
    amount = "less than a minute"
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if abs(seconds) >= length:
            amount = format_count(int(abs(seconds) // length), unit)
            break
    return f"in {amount}" if seconds > 0 else f"{amount} ago"


def format_count(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun in the right form.

    >>> format_count(1, "person", "people"), format_count(1200, "row")
    ('1 person', '1,200 rows')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def format_figure(value: float | None, digits: int = 3) -> str:
    """Return a number with a few significant digits. Very large and small ones become powers of ten.

    >>> format_figure(0.25), format_figure(1e-5), format_figure(8.0), format_figure(None)
    ('0.25', '10⁻⁵', '8', '–')
    """
    if value is None:
        return "–"
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
        mantissa = mantissa.rstrip("0").rstrip(".")
        power = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return power if mantissa == "1" else f"{mantissa} × {power}"
    return f"{value:.{digits}g}" if abs(value) < 1000 else f"{value:,.0f}"


def format_size(number: int) -> str:
    """Return a file size in binary units.

    >>> format_size(512), format_size(2_500_000)
    ('512 bytes', '2.4 MiB')
    """
    amount, units = float(number), ["KiB", "MiB", "GiB", "TiB"]
    if amount < 1024:
        return format_count(number, "byte")
    unit = ""
    while amount >= 1024 and units:
        amount, unit = amount / 1024, units.pop(0)
    return f"{amount:.1f} {unit}"


def format_duration(seconds: float) -> str:
    """Return a duration in the largest unit that divides it.

    >>> format_duration(3600), format_duration(90), format_duration(0)
    ('1 hour', '90 seconds', '0 seconds')
    """
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length and seconds % length == 0:
            return format_count(int(seconds // length), unit)
    return format_count(int(seconds), "second")


def format_certainty(epsilon: float) -> str:
    """Return how sure someone can become who was undecided: e^ε/(1 + e^ε), as the odds move by at most e^ε.

    >>> format_certainty(1.0), format_certainty(0.0)
    ('73 %', '50 %')
    """
    share = 1 / (1 + math.exp(-epsilon))
    return "almost 100 %" if share > 0.994 else f"{100 * share:.0f} %"


def format_probability(probability: float) -> str:
    """Return a small probability as "1 in N", rounded up so that "at most" stays true.

    >>> [format_probability(p) for p in (1.612e-4, 1e-5, 0.3, 0.0)]
    ['1 in 6,200', '1 in 100,000', '30 %', '0']
    """
    if probability <= 0:
        return "0"
    if probability > 0.05:
        return f"{math.ceil(100 * probability):d} %"
    inverse = 1 / probability
    unit = 10 ** (math.floor(math.log10(inverse)) - 1)
    return f"1 in {math.floor(inverse / unit * (1 + 1e-12)) * unit:,.0f}"


def format_exception(epsilon: float, shift: float) -> str:
    """Return how often the privacy loss exceeds ε, and someone may become surer than ε allows."""
    return format_probability(loss_exceeds(epsilon=epsilon, shift=shift))


def describe_delta(epsilon: float, delta: float) -> str:
    """Return a sentence with the exact meaning of (ε, δ)."""
    return (
        "For any question asked of the file, the probability of each answer differs from the retrained "
        f"model's by at most a factor of {math.exp(epsilon):.3g} (e^ε), plus {format_probability(delta)} (δ)."
    )


def describe_assurance(assurance: str) -> str:
    """Return a level of assurance with the sentence that explains it.

    >>> describe_assurance("heuristic")[:44]
    'Heuristic: This is an estimate, not a guaran'
    """
    return f"{assurance.capitalize()}: {ASSURANCES[assurance]}"


def _describe_release(policy: Any, assurance: str) -> str:
    """Return what one release reveals at most, or why nothing is guaranteed about it."""
    epsilon, delta = policy.epsilon, policy.delta
    if policy.method == "retrain":
        return (
            "Every release is a retraining without the erased people, and reveals nothing about them (ε = 0)."
        )
    figures = f"ε = {format_figure(epsilon)} at δ = {format_figure(delta)}"
    if assurance == "heuristic":
        return (
            f"{ASSURANCES[assurance]} The noise is chosen for {figures}, which holds only if the sampled "
            "constant is a true bound."
        )
    if assurance == "as-published":
        return f"The noise is chosen for {figures}. {ASSURANCES[assurance]}"
    exception = format_exception(epsilon, shift_for(epsilon=epsilon, delta=delta))
    return (
        f"Each release carries enough noise for {figures}. Someone who is undecided whether a person was in "
        f"the data can become at most {format_certainty(epsilon)} sure. In at most {exception} releases they "
        f"may become surer. {describe_delta(epsilon, delta)}"
    )


def describe_policy(policy: Any, sigma: float | None, assurance: str) -> list[str]:
    """Return the owner's policy as sentences. `assurance` is that of the next release."""
    sentences = [
        _describe_release(policy, assurance),
        f"The noise has the standard deviation σ = {format_figure(sigma)}. It hides the distance that "
        "may remain to a model trained without the erased records.",
        "No total ε is known for the releases since the last retraining."
        if assurance == "heuristic"
        else "All releases since the last retraining together stay within "
        f"ε = {format_figure(policy.lifetime_epsilon)}.",
        f"A batch starts when {format_count(policy.batch_subjects, 'person is', 'people are')} waiting, or "
        f"when the oldest request has waited {format_duration(policy.batch_age_seconds)}."
        f"{_describe_smallest_batch(policy.smallest_batch)}",
        _describe_method(policy.method, policy.fallback),
        f"Receipts can be downloaded for {format_count(policy.receipt_days, 'day')} after completion.",
        f"The evidence of certificates is deleted after {format_count(policy.evidence_days, 'day')}, and the "
        f"figures of evaluations and audits after {format_count(policy.report_days, 'day')}.",
    ]
    if policy.quality_gate is not None:
        sentences.append("A version that scores lower than the quality gate allows is put on hold.")
    if getattr(policy, "heuristic", False):
        sentences.append(
            "If only an estimate is possible, it is accepted and labelled as one. It guarantees nothing."
        )
    if policy.suppression_list:
        sentences.append(
            "People who were erased are kept out of data that is added later. Only a keyed hash of their "
            "identifier is stored for this."
        )
    return sentences


def describe_pace(releases_left: int, recent: int, days: int) -> str:
    """Return how long the privacy budget lasts if releases continue as in the last `days`.

    >>> describe_pace(8, 2, 60)
    'At the present pace (2 releases in the last 60 days), the budget lasts about 8 months.'
    >>> describe_pace(1, 30, 30)
    'At the present pace (30 releases in the last 30 days), the budget lasts less than a month.'
    """
    pace = f"At the present pace ({format_count(recent, 'release')} in the last {format_count(days, 'day')})"
    months = releases_left * days / recent / (365.25 / 12)
    if months < 1:
        return f"{pace}, the budget lasts less than a month."
    if months > 120:
        return f"{pace}, the budget lasts more than 10 years."
    return f"{pace}, the budget lasts about {format_count(round(months), 'month')}."


def _describe_smallest_batch(smallest: int) -> str:
    """
    >>> _describe_smallest_batch(1), _describe_smallest_batch(10)
    ('', ' A batch of fewer than 10 people waits, unless a deadline is near or someone starts it by hand.')
    """
    if smallest == 1:
        return ""
    return (
        f" A batch of fewer than {smallest} people waits, unless a deadline is near or someone starts it by "
        "hand."
    )


def _describe_method(method: str, fallback: str) -> str:
    if method == "retrain":
        return "Every batch retrains the model from the beginning."
    otherwise = "the model is retrained" if fallback == "retrain" else "the batch is put on hold"
    how = "" if method == "tr" else f" with a baseline method ({method}) that is certified only as published"
    return f"Erased people are removed from the current version{how}. If that fails, {otherwise}."
