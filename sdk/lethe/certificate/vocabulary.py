"""The words a certificate may use, version 2: every key, and the plain sentence it stands for.

A certificate names keys. The sentences live here, so an issuer cannot slip free text into a signed statement,
and a verifier prints the same sentence for everyone.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

Loss = Literal["cross-entropy", "half squared error", "defined by a plug-in"]
Reference = Literal["retained-minimiser", "retained-stationary-point", "itself", "as-published"]
AssumptionName = Literal[
    "declared-origins",
    "random-generator",
    "retraining-reaches-reference",
    "sampled-hessian-lipschitz",
    "curvature-rounding",
    "published-analysis",
    "floating-point-noise",
    "features-look-standardised",
    "choices-after-refusal",
]
Limit = Literal[
    "earlier-versions",
    "reconstruction",
    "mechanism-and-counts",
    "copies-elsewhere",
    "adaptive-requests",
    "epsilon-chosen-later",
    "quality-decision",
]
RegistrationWarning = Literal["features-look-standardised"]

REFERENCES: Final[dict[Reference, str]] = {
    "retained-minimiser": "the minimiser of the objective on the retained records, released with the same noise",
    "retained-stationary-point": "the only stationary point of the objective on the retained records near the "
    "released one, a strict local minimiser, released with the same noise",
    "itself": "itself: training from the anchor on the retained records alone, released with noise",
    "as-published": "the model retrained on the retained records, as the method's publication defines it",
}

ASSUMPTIONS: Final[dict[AssumptionName, str]] = {
    "declared-origins": "The model's owner declared that the features, the constants, the anchor, λ and the "
    "policy's ε, δ and Δ* were chosen without looking at records that can be erased.",
    "random-generator": "The noise bits come from the stream cipher ChaCha20 under a fresh key of the operating "
    "system. They are taken to be indistinguishable from random bits.",
    "retraining-reaches-reference": "Retraining from the anchor is taken to reach the stationary point that is "
    "certified. Experiments show this; it is not proved.",
    "sampled-hessian-lipschitz": "The Lipschitz constant of the Hessian was sampled. Samples bound it from below "
    "only, so it may be larger.",
    "curvature-rounding": "Rounding in products with the Hessian is modelled to first order with a safety factor "
    "of sixteen, and is taken to be independent of the random start of the measurement.",
    "published-analysis": "The distance and the noise follow the method's publication, in which the noise depends "
    "on the data. Its claim is repeated here and not proved.",
    "floating-point-noise": "An earlier release in this model's running sum used floating-point noise (certificate "
    "format 1). A known attack can tell such a file from its reference; nobody is assumed to use it.",
    "features-look-standardised": "The features have means near 0 and variances near 1, as if they had been "
    "standardised with the erased records themselves. The owner's declaration is taken to be right.",
    "choices-after-refusal": "ε, δ, Δ* or λ was changed after an attempt on the same records was refused or held. "
    "The change is taken not to depend on those records.",
}

LIMITS: Final[dict[Limit, str]] = {
    "earlier-versions": "Earlier versions of the model that someone kept, alone or compared with this one.",
    "reconstruction": "Reconstruction by comparison: from the versions before and after the erasure of one person, "
    "that person's record can be recovered almost exactly from a linear model.",
    "mechanism-and-counts": "Which mechanism ran, when, and for how many requests and people.",
    "copies-elsewhere": "Copies of the erased records outside this model's training data.",
    "adaptive-requests": "Requests that depend on published models. The retained records may then themselves say "
    "something about the erased ones, and retraining on them would say it too.",
    "epsilon-chosen-later": "An ε chosen after seeing earlier releases. Only the lifetime cap holds then.",
    "quality-decision": "The decision to publish or to hold this version, which may depend on how it scores.",
}


def check_vocabulary_is_complete() -> None:
    """Raise if a key has no sentence."""
    pairs = ((Reference, REFERENCES), (AssumptionName, ASSUMPTIONS), (Limit, LIMITS))
    for keys, sentences in pairs:
        if set(get_args(keys)) != set(sentences):
            raise ValueError(f"keys without a sentence: {sorted(set(get_args(keys)) ^ set(sentences))}")


check_vocabulary_is_complete()
