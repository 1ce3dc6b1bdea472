"""The manifest of a model as it is stored in `models.manifest`, and what the service derives from it."""

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, get_args

from lethe.certificate.assurance import lower_assurance
from lethe.certificate.predicate import Assurance
from lethe.certificate.vocabulary import RegistrationWarning
from lethe.manifest import BUILT_IN_FAMILIES, NETWORK_FAMILIES, Manifest

__all__ = [
    "FAMILY_GROUP",
    "NETWORK_FAMILIES",
    "Manifest",
    "assurance_notes",
    "expected_assurance",
    "known_families",
    "unresolved_warnings",
]
FAMILY_GROUP = "lethe.families"


def unresolved_warnings(
    manifest: Manifest, report: Mapping[str, Any] | None
) -> tuple[RegistrationWarning, ...]:
    """Return the warnings of the registration report that no declaration of the owner resolves.

    Codes that this version does not know are ignored.
    """
    if report is None or manifest.origins.standardisation == "public data":
        return ()
    codes = report.get("warning_codes", ())
    return tuple(code for code in get_args(RegistrationWarning) if code in codes)


def expected_assurance(
    manifest: Manifest, report: Mapping[str, Any] | None, *, changed_after_refusal: bool = False
) -> Assurance:
    """Return the highest level of assurance that the next release by the policy's method can have."""
    return lower_assurance(
        manifest.assurance,
        changed_after_refusal=changed_after_refusal,
        warnings=unresolved_warnings(manifest, report),
    )


def assurance_notes(
    manifest: Manifest, report: Mapping[str, Any] | None, *, changed_after_refusal: bool = False
) -> list[str]:
    """Explain why the assurance of the next release is lower than the method allows, and how to raise it."""
    notes = []
    if "features-look-standardised" in unresolved_warnings(manifest, report):
        notes.append(
            "The features look as if they were standardised with the training rows themselves. Erasing a row "
            "would not undo that. If the constants come from public data, declare origins.standardisation as "
            "public data. Otherwise standardise with public constants and register the model again."
        )
    if changed_after_refusal:
        notes.append(
            "ε, δ, Δ* or λ was changed after an attempt on the same rows was refused or held, and the next "
            "certificate will say so. Go back to the earlier values. If they cannot be certified, use the "
            "method or the fallback retrain. You can choose new values once the next version is published."
        )
    return notes


def known_families() -> frozenset[str]:
    """Return the names of the built-in families and of installed plug-ins, without importing plug-ins."""
    return frozenset(BUILT_IN_FAMILIES) | {plugin.name for plugin in entry_points(group=FAMILY_GROUP)}
