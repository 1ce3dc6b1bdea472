"""What registration tells the model's owner: counts, advice and warnings, nothing of a single row.

Figures by which ε, δ, Δ* or λ could be chosen come from the holdout alone (`worker.pipeline.advice`): fitted
to training rows, the choice would depend on rows that can be erased, and the certificate says that it does
not.
"""

from dataclasses import dataclass
from typing import Any

from app.db.manifest import Manifest
from app.db.policy import SMALLEST_BATCH
from certificate.vocabulary import RegistrationWarning
from worker.loading.inspection import Inspection
from worker.pipeline.advice import Advice


@dataclass(frozen=True)
class Measured:
    """What registration found. `near`: whether version 0 is within Δ*; None where that is not known yet."""

    trained: Inspection
    held_out: Inspection
    dimension: int
    origin: str
    near: bool | None
    advice: Advice
    seconds: float


def compose(manifest: Manifest, measured: Measured) -> dict[str, Any]:
    """Compose the report that is kept with the model."""
    return {
        "rows": measured.trained.total,
        "subjects": len(measured.trained.subjects.seen),
        "holdout_rows": measured.held_out.total,
        "classes": _histogram(measured.trained),
        "dimension": measured.dimension,
        "weights": measured.origin,
        "sigma": manifest.sigma,
        **measured.advice.shown(),
        "seconds": round(measured.seconds, 3),
        "warning_codes": warning_codes(measured.trained),
        "warnings": warnings(manifest, measured),
    }


def _histogram(trained: Inspection) -> dict[str, int] | None:
    """Rows per class, when every class has enough different subjects to be told."""
    if trained.expected.classes is None or not trained.describable():
        return None
    return {str(c): trained.classes[c] for c in range(trained.expected.classes)}


def warning_codes(trained: Inspection) -> list[RegistrationWarning]:
    """Return the warnings that lower the tier of a certificate until the owner has answered them."""
    return ["features-look-standardised"] if trained.looks_standardised() else []


def warnings(manifest: Manifest, measured: Measured) -> list[str]:
    """Return every warning as a sentence."""
    shared = measured.trained.subjects.shared(measured.held_out.subjects)
    problem = measured.advice.problem
    said = {
        "the features have means near 0 and variances near 1: constants computed from these rows would make "
        "the objective depend on them, and erasing a row would not undo that; unless origins.standardisation "
        "says that they come from public data, certificates are conditional at most": bool(
            warning_codes(measured.trained)
        ),
        f"{_people(shared)} both in the training data and in the holdout": shared > 0,
        _empty_classes(measured.trained): _classes_without_rows(measured.trained) > 0,
        "the uploaded weights are not within target_distance of the objective's optimum; the first erasure "
        "will move the model there": measured.near is False,
        f"{problem}; erasures will fall back to retraining": problem is not None,
        _small_batches(manifest.policy.smallest_batch): manifest.policy.smallest_batch < SMALLEST_BATCH,
        "the quality gate compares with the version before, which the erased rows have shaped: whether a "
        "version is held then depends on them; min_f1 and max_loss look at the new version alone": (
            manifest.policy.quality_gate is not None and manifest.policy.quality_gate.compares
        ),
    }
    return [sentence for sentence, holds in said.items() if holds]


def _people(number: int) -> str:
    return "1 person has rows" if number == 1 else f"{number} people have rows"


def _classes_without_rows(trained: Inspection) -> int:
    return 0 if trained.expected.classes is None else trained.expected.classes - len(trained.classes)


def _empty_classes(trained: Inspection) -> str:
    empty = _classes_without_rows(trained)
    return f"{empty} of the declared classes {'has' if empty == 1 else 'have'} no row"


def _small_batches(smallest: int) -> str:
    people = "1 person" if smallest == 1 else f"{smallest} people"
    return (
        f"batches of {people} are sealed: whoever compares the versions before and after a small erasure can "
        f"nearly reconstruct the erased rows; min_batch_subjects of {SMALLEST_BATCH} or more avoids that"
    )
