"""The service's states and figures in the words of someone who did not build it."""

import math
from datetime import datetime
from typing import Any

from app.clock import now
from certificate.privacy import loss_exceeds, shift_for

# State → (what it is called, what it means for the person who asked).
ERASURE = {
    "received": ("Received", "The request is on record. It waits for the next batch."),
    "batched": ("Scheduled", "The request is in a batch that is about to run."),
    "running": ("In progress", "The batch with this request is under way."),
    "completed": ("Done", "Nothing further is to be done. What came of it is shown below."),
    "failed": ("Needs attention", "Something went wrong. The request stays open until it is tried again."),
    "withdrawn": ("Withdrawn", "The request was taken back before it was carried out."),
}
BATCH = {
    "sealed": ("Sealed", "Its requests are fixed; it is about to be handed to a worker."),
    "queued": ("Queued", "It waits for a worker."),
    "running": ("Running", "A worker is removing the data from the model."),
    "purging": ("Cleaning up", "The new version is published; the old data is being deleted."),
    "completed": ("Completed", "The new version is published and the old data is deleted."),
    "failed": ("Failed", "It was given up. Its requests stay open until it is tried again."),
    "held": ("On hold", "It waits for a decision."),
}
MODEL = {
    "uploading": ("Draft", "Data and weights are being sent."),
    "validating": ("Being checked", "A worker is checking data and weights."),
    "ready": ("Ready", "Erasures are carried out on this model."),
    "rejected": ("Rejected", "Data or weights did not fit; the reasons are below."),
    "retired": ("Retired", "Data and checkpoints are deleted. Certificates stay."),
}
VERSION = {
    "current": ("Current", "the one to use"),
    "superseded": ("Superseded", "no longer available"),
    "purged": ("Purged", "deleted"),
}
OUTCOME = {
    "erased": "Erased from the model",
    "erased_outside_training": "Held outside the training data only; deleted there",
    "not_in_training_set": "No data of this person was found",
}
HELD = {
    "not_certifiable": "The target could not be certified, and the policy does not allow retraining.",
    "budget": "The model's lifetime privacy budget is spent, and the policy does not allow retraining.",
    "cancelled": "Someone cancelled it. Its requests stay open until it is tried again.",
    "quality_gate": "The new version scores less on the holdout than the policy wants. Someone must "
    "publish it as it is, or discard it.",
    "unpublished": "A new version was made and could not be published. It is never drawn again: publish it "
    "as it is, or discard it.",
}
STEPS = (
    ("resolve", "Find the rows"),
    ("solve", "Remove their influence"),
    ("certify", "Check the bound"),
    ("release", "Add noise and sign"),
    ("purge", "Delete the old data"),
)
BECAUSE = {
    "count": "enough people were waiting",
    "age": "the oldest request had waited long enough",
    "deadline": "a deadline was near",
    "flush": "someone asked for it",
    "append": "new rows were added",
}
MECHANISM = {
    "tr": "Unlearned",
    "retrain": "Retrained",
    "discarded": "Discarded draw",
    "tr-paper": "Unlearned (as published)",
    "guo2020": "Guo et al. 2020",
    "zhang2024": "Zhang et al. 2024",
}
ASSURANCE = {
    "proved": "Proved: it follows from the mathematics and the assumptions listed.",
    "conditional": "Conditional: it follows from the assumptions listed, one of which is shown by "
    "experiment only.",
    "heuristic": "An estimate, not a guarantee: it rests on a constant that was sampled.",
    "as-published": "As published: the method's authors claim it; it is repeated here and not proved.",
}
ASSUMPTION = {
    "declared-origins": "Features, constants and policy do not depend on anyone who can be erased",
    "random-generator": "The noise bits are as good as random",
    "floating-point-noise": "An earlier release used floating-point noise",
    "features-look-standardised": "The features were not standardised with the erased records",
    "choices-after-refusal": "A choice made after a refusal does not depend on the erased records",
    "retraining-reaches-reference": "Retraining would reach the same point",
    "curvature-rounding": "Rounding does not conspire against the measurement of curvature",
    "sampled-hessian-lipschitz": "A sampled constant is taken for a bound",
    "published-analysis": "The publication's analysis is right",
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


def tone(state: str) -> str:
    return _TONES.get(state, "plain")


def name_of(table: dict[str, tuple[str, str]], state: str) -> str:
    """A state that this page does not know yet is shown as it is called."""
    return table[state][0] if state in table else state.replace("_", " ").capitalize()


def meaning_of(table: dict[str, tuple[str, str]], state: str) -> str:
    return table[state][1] if state in table else ""


def day(at: datetime) -> str:
    return f"{at.day} {at:%b %Y}"


def moment(at: datetime) -> str:
    return f"{at.day} {at:%b %Y, %H:%M} UTC"


def ago(at: datetime) -> str:
    """How far away, in the largest unit that fits.

    >>> from datetime import timedelta
    >>> ago(now() + timedelta(days=3, hours=1)), ago(now() - timedelta(hours=2, minutes=1))
    ('in 3 days', '2 hours ago')
    """
    seconds = (at - now()).total_seconds()
    amount = "under a minute"
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if abs(seconds) >= length:
            amount = counted(int(abs(seconds) // length), unit)
            break
    return f"in {amount}" if seconds > 0 else f"{amount} ago"


def counted(number: int, noun: str, plural: str = "") -> str:
    """
    >>> counted(1, "person", "people"), counted(1200, "row")
    ('1 person', '1,200 rows')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def figure(value: float | None, digits: int = 3) -> str:
    """As few digits as say something; powers of ten as people write them.

    >>> figure(0.25), figure(1e-5), figure(8.0), figure(None)
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


def size(number: int) -> str:
    """
    >>> size(512), size(2_500_000)
    ('512 bytes', '2.4 MiB')
    """
    amount, units = float(number), ["KiB", "MiB", "GiB", "TiB"]
    if amount < 1024:
        return counted(number, "byte")
    unit = ""
    while amount >= 1024 and units:
        amount, unit = amount / 1024, units.pop(0)
    return f"{amount:.1f} {unit}"


def sureness(epsilon: float) -> str:
    """How sure someone undecided can become: e^ε/(1 + e^ε), since the odds move by at most e^ε.

    >>> sureness(1.0), sureness(0.0)
    ('73 %', '50 %')
    """
    share = 1 / (1 + math.exp(-epsilon))
    return "almost 100 %" if share > 0.994 else f"{100 * share:.0f} %"


def one_in(probability: float) -> str:
    """Say a small probability in words, rounded up so that "at most" stays true.

    >>> one_in(1.612e-4), one_in(1e-5), one_in(0.3), one_in(0.0)
    ('1 in 6,200', '1 in 100,000', '30 %', '0')
    """
    if probability <= 0:
        return "0"
    if probability > 0.05:
        return f"{math.ceil(100 * probability):d} %"
    waits = 1 / probability
    unit = 10 ** (math.floor(math.log10(waits)) - 1)
    return f"1 in {math.floor(waits / unit * (1 + 1e-12)) * unit:,.0f}"


def exception(epsilon: float, shift: float) -> str:
    """Say how often someone may become surer than ε allows: how often the privacy loss exceeds it."""
    return one_in(loss_exceeds(epsilon=epsilon, shift=shift))


def delta_sentence(epsilon: float, delta: float) -> str:
    """Say in plain words what (ε, δ) means exactly."""
    return (
        "For every question one can ask of the file, the probability of each answer differs from the "
        f"retrained model's by at most a factor of {math.exp(epsilon):.3g} (e^ε), plus {figure(delta)} (δ)."
    )


def policy_sentences(policy: Any, sigma: float | None) -> list[str]:
    """What the owner decided, in sentences."""
    said = [
        f"Each release is noised so that ε = {figure(policy.epsilon)} at δ = {figure(policy.delta)}: someone "
        f"undecided becomes at most {sureness(policy.epsilon)} sure that a person was in the data; in at "
        f"most {_exception(policy)} releases they may become surer (σ = {figure(sigma)}). "
        f"{delta_sentence(policy.epsilon, policy.delta)}",
        f"All releases together stay within ε = {figure(policy.lifetime_epsilon)}, until a retraining.",
        f"A batch runs when {counted(policy.batch_subjects, 'person waits', 'people wait')}, or when the "
        f"oldest request has waited {duration(policy.batch_age_seconds)}."
        f"{_small_batches(policy.smallest_batch)}",
        _method(policy.method, policy.fallback),
        f"Receipts can be fetched for {counted(policy.receipt_days, 'day')} after completion.",
    ]
    if policy.quality_gate is not None:
        said.append("A version that scores less than the quality gate wants waits for a decision.")
    if getattr(policy, "heuristic", False):
        said.append(
            "Where only an estimate can be had, it is accepted, and labelled so: it guarantees nothing."
        )
    if policy.suppression_list:
        said.append("People who were erased are kept out of data that is added later, by a keyed hash.")
    return said


def _small_batches(smallest: int) -> str:
    """
    >>> _small_batches(1), _small_batches(10)
    ('', ' With fewer than 10 people it waits, unless a deadline is near or someone insists.')
    """
    if smallest == 1:
        return ""
    return f" With fewer than {smallest} people it waits, unless a deadline is near or someone insists."


def _exception(policy: Any) -> str:
    return exception(policy.epsilon, shift_for(epsilon=policy.epsilon, delta=policy.delta))


def _method(method: str, fallback: str) -> str:
    if method == "retrain":
        return "Every batch retrains the model from the start."
    otherwise = "the model is retrained" if fallback == "retrain" else "the batch is held for a decision"
    how = "" if method == "tr" else f" by a published method ({method}), certified as published only"
    return f"The erased are removed from the published version{how}; where that fails, {otherwise}."


def duration(seconds: float) -> str:
    """
    >>> duration(3600), duration(90), duration(0)
    ('1 hour', '90 seconds', '0 seconds')
    """
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length and seconds % length == 0:
            return counted(int(seconds // length), unit)
    return counted(int(seconds), "second")
