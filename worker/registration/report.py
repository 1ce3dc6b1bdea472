"""The registration report for the model's owner: counts, advice and warnings, nothing about a single row.

Figures that help to choose ε, δ, Δ* or λ come from the holdout alone (see `advice`). If they came from
training rows, the choice would depend on rows that can be erased, and certificates state that it does not.
"""

from dataclasses import dataclass
from typing import Any

from app.db.manifest import Manifest
from lethe.certificate.vocabulary import RegistrationWarning
from lethe.policy import SMALLEST_BATCH
from worker.data.inspection import Inspection
from worker.registration.advice import Advice


@dataclass(frozen=True)
class Findings:
    """What registration measured."""

    trained: Inspection
    held_out: Inspection
    dimension: int
    origin: str
    near: bool | None
    """Whether version 0 is within Δ* of the optimum. None if that is not known yet."""
    advice: Advice
    represented: dict[str, Any] | None
    """The representation and how it was checked. None if the model has none."""
    seconds: float


def compose_report(manifest: Manifest, findings: Findings) -> dict[str, Any]:
    """Compose the report that is stored with the model."""
    return {
        "rows": findings.trained.total,
        "subjects": len(findings.trained.subjects.seen),
        "holdout_rows": findings.held_out.total,
        "classes": _histogram(findings.trained),
        "dimension": findings.dimension,
        "weights": findings.origin,
        "sigma": manifest.sigma,
        "representation": findings.represented,
        **findings.advice.to_report(),
        "seconds": round(findings.seconds, 3),
        "warning_codes": warning_codes(findings.trained),
        "warnings": warnings(manifest, findings),
    }


def _histogram(trained: Inspection) -> dict[str, int] | None:
    """Return the rows per class, or None if some class has so few people that its size would reveal them."""
    if trained.expected.classes is None or not trained.describable():
        return None
    return {str(c): trained.classes[c] for c in range(trained.expected.classes)}


def warning_codes(trained: Inspection) -> list[RegistrationWarning]:
    """Return the warnings that lower the assurance of certificates until the owner answers them."""
    return ["features-look-standardised"] if trained.looks_standardised() else []


def warnings(manifest: Manifest, findings: Findings) -> list[str]:
    """Return every warning that applies, as a sentence for the owner."""
    shared = findings.trained.subjects.shared(findings.held_out.subjects)
    problem = findings.advice.problem
    texts = {
        "the features have means near 0 and variances near 1, as if they were standardised with constants "
        "computed from these rows: erasing a row would not remove its influence on those constants; "
        "certificates are conditional at most until origins.standardisation declares that the constants come "
        "from public data": bool(warning_codes(findings.trained)),
        f"{_people(shared)} both in the training data and in the holdout": shared > 0,
        _empty_classes(findings.trained): _classes_without_rows(findings.trained) > 0,
        "the uploaded weights are not within target_distance of the objective's optimum: the first erasure "
        "will also move the model there": findings.near is False,
        f"{problem}; erasures will fall back to retraining": problem is not None,
        _small_batches(manifest.policy.smallest_batch): manifest.policy.smallest_batch < SMALLEST_BATCH,
        "the quality gate compares each version with the previous one, which the erased rows have shaped, so "
        "whether a version is held depends on them; to avoid that, use min_f1 and max_loss, which depend on "
        "the new version alone": (
            manifest.policy.quality_gate is not None and manifest.policy.quality_gate.compares
        ),
    }
    return [sentence for sentence, applies in texts.items() if applies]


def _people(number: int) -> str:
    return "1 person has rows" if number == 1 else f"{number} people have rows"


def _classes_without_rows(trained: Inspection) -> int:
    return 0 if trained.expected.classes is None else trained.expected.classes - len(trained.classes)


def _empty_classes(trained: Inspection) -> str:
    empty = _classes_without_rows(trained)
    return f"{empty} of the declared classes {'has' if empty == 1 else 'have'} no rows"


def _small_batches(smallest: int) -> str:
    people = "1 person" if smallest == 1 else f"{smallest} people"
    return (
        f"batches of {people} are sealed: anyone who compares the versions before and after such a small "
        "erasure can nearly reconstruct the erased rows; set min_batch_subjects to at least "
        f"{SMALLEST_BATCH} to avoid that"
    )
