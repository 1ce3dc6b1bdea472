"""The vocabulary of certificates of version 2: every key, and the sentence that explains it.

A certificate contains only keys. The sentences are here, so an issuer cannot put free text into a signed
statement, and a verifier shows the same sentence to everyone.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

Loss = Literal["cross-entropy", "half squared error", "defined by a plug-in"]
Reference = Literal["retained-minimiser", "retained-stationary-point", "itself", "as-published"]
AssumptionName = Literal[
    "declared-origins",
    "rows-represented-independently",
    "random-generator",
    "module-treats-rows-alone",
    "modelled-rounding",
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
    "representation-training-data",
]
RegistrationWarning = Literal["features-look-standardised"]

REFERENCES: Final[dict[Reference, str]] = {
    "retained-minimiser": "the model that retraining on the retained records gives (the minimiser of the "
    "objective), released with the same noise",
    "retained-stationary-point": "the only stationary point of the objective on the retained records near the "
    "released one (a strict local minimiser), released with the same noise",
    "itself": "itself: training from the anchor on the retained records alone, released with noise",
    "as-published": "the model retrained on the retained records, as the method's publication defines it",
}

# One sentence for each level of assurance. The API, the command line, the dashboard, the printed page and the model
# card all show it.
ASSURANCES: Final[dict[str, str]] = {
    "proved": "The guarantee follows mathematically from the assumptions that the certificate lists.",
    "conditional": "The guarantee follows from the assumptions that the certificate lists, but at least one of them "
    "is not proved.",
    "heuristic": "This is an estimate, not a guarantee: it rests on a constant that was sampled, not bounded.",
    "as-published": "The authors of the method claim this guarantee. Lethe repeats the claim and does not prove it.",
}

ASSUMPTIONS: Final[dict[AssumptionName, str]] = {
    "declared-origins": "The model's owner declared that the features, the constants, the anchor, λ and the "
    "policy's ε, δ and Δ* were chosen without looking at records that can be erased.",
    "rows-represented-independently": "Each row was represented independently of the other rows, so the features of "
    "a retained row depend on nobody else's row. This was checked on sample rows. The certificate names the check.",
    "random-generator": "The noise bits come from the stream cipher ChaCha20 under a fresh key from the operating "
    "system. They are assumed to be indistinguishable from random bits.",
    "module-treats-rows-alone": "The plug-in's module computes each row by itself, without randomness and without "
    "memory, and its derivatives are those of its outputs. This was checked on sample rows at registration.",
    "modelled-rounding": "The rounding error of the gradient was modelled, not derived: sixteen times the difference "
    "between passes in float32 and float64, scaled to float64. At a kink, such as that of ReLU, the derivative is the "
    "one on the side that the float64 program computes, and retraining is assumed to compute the same side.",
    "retraining-reaches-reference": "Retraining from the anchor is assumed to reach the certified stationary "
    "point. Experiments support this, but it is not proved.",
    "sampled-hessian-lipschitz": "The Lipschitz constant of the Hessian was estimated from samples. Samples bound "
    "it only from below, so the true constant may be larger.",
    "curvature-rounding": "Rounding errors in products with the Hessian are modelled to first order with a safety "
    "factor of sixteen. They are assumed to be independent of the random start of the measurement.",
    "published-analysis": "The distance and the noise follow the method's publication, in which the noise depends "
    "on the data. The publication's claim is repeated here, not proved.",
    "floating-point-noise": "An earlier release in this model's running sum used floating-point noise (certificate "
    "format 1). A known attack can distinguish such a file from its reference. It is assumed that nobody uses it.",
    "features-look-standardised": "The features have means near 0 and variances near 1, as if they had been "
    "standardised with the erased records themselves. The owner's declaration is assumed to be correct.",
    "choices-after-refusal": "ε, δ, Δ* or λ was changed after an attempt on the same records was refused or held. "
    "The change is assumed not to depend on those records.",
}

LIMITS: Final[dict[Limit, str]] = {
    "earlier-versions": "Earlier versions of the model that someone kept, used alone or compared with this one.",
    "reconstruction": "Reconstruction by comparison: anyone who has the versions of a linear model from before and "
    "after the erasure of one person can recover that person's record almost exactly.",
    "mechanism-and-counts": "Which mechanism ran, when it ran, and for how many requests and people.",
    "copies-elsewhere": "Copies of the erased records outside this model's training data.",
    "adaptive-requests": "Requests that depend on published models. The retained records may then reveal something "
    "about the erased ones, and a model retrained on them would reveal it too.",
    "epsilon-chosen-later": "An ε chosen after seeing earlier releases. In that case only the lifetime cap holds.",
    "quality-decision": "The decision to publish or hold this version, which may depend on how well it scores.",
    "representation-training-data": "Whatever the representation was trained on. It was made earlier and elsewhere. What it "
    "learned from its own training data, and about whom, is outside this certificate.",
}


def check_vocabulary_is_complete() -> None:
    """Raise `ValueError` if a key has no sentence or a sentence has no key."""
    pairs = ((Reference, REFERENCES), (AssumptionName, ASSUMPTIONS), (Limit, LIMITS))
    for keys, sentences in pairs:
        if set(get_args(keys)) != set(sentences):
            raise ValueError(
                f"keys and sentences do not match: {sorted(set(get_args(keys)) ^ set(sentences))}"
            )


check_vocabulary_is_complete()
