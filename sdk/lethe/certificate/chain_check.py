"""Checklist line 6: every earlier certificate of the chain verifies, and the running sums are correct.

A pack contains the certificates since the last retrain, or since the model's first. Each is verified by
itself and against its predecessor, and its running sum is recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from lethe.certificate.assurance import check_assurance
from lethe.certificate.chain import (
    Link,
    RunningSum,
    RunningTotals,
    release_shift,
    since_last_retrain,
    total_epsilon,
)
from lethe.certificate.envelope import check_signature, from_base64
from lethe.certificate.envelope import parse as parse_envelope
from lethe.certificate.errors import ChainBroken, VerificationError
from lethe.certificate.keys import KeySet
from lethe.certificate.noise_check import check_noise
from lethe.certificate.pack import AnyPack, Predecessor, PredecessorV1
from lethe.certificate.predicate import Lifetime, Objective, Predicate
from lethe.certificate.predicate_v1 import LifetimeV1
from lethe.certificate.privacy import SMALLEST_DELTA, TOLERANCE, agrees
from lethe.certificate.statement import AnyStatement
from lethe.certificate.statement import parse as parse_statement

_total_epsilon = lru_cache(maxsize=4096)(total_epsilon)  # a server verifies the same chain many times


def check_chain(statement: AnyStatement, digest: str, pack: AnyPack, keys: KeySet) -> str:
    """Check line 6 and return the detail to show, or raise `ChainBroken`."""
    earlier = [_verified_link(predecessor, keys) for predecessor in pack.predecessors]
    links = [*earlier, Link(digest, statement)]
    _check_order(links)
    _check_reuse(links)
    _check_sums(links)
    _check_versions(links)
    _check_objectives(links)
    counted = since_last_retrain(links)
    discarded = sum(link.mechanism == "discarded" for link in counted)
    releases = "1 release" if len(counted) == 1 else f"{len(counted)} releases"
    total = f"{_total(statement.predicate.lifetime)}; {releases}, of which {discarded} discarded"
    return f"{total}{_cap_change(counted)}"


def _verified_link(predecessor: Predecessor | PredecessorV1, keys: KeySet) -> Link:
    """Verify the signature, statement, noise and assurance of an earlier certificate.

    A pack of format 1 does not state its place in the log, so the key's range of places is not checked. The
    chain of digests from a certificate with a known place then dates it.
    """
    position = predecessor.index if isinstance(predecessor, Predecessor) else None
    name = "a predecessor"
    try:
        envelope = parse_envelope(from_base64(predecessor.envelope))
        check_signature(envelope, keys, position=position)
        link = Link(envelope.digest, parse_statement(envelope.payload))
        name = _name(link)
        check_noise(link.predicate)
        check_assurance(link.predicate)
    except VerificationError as error:
        raise ChainBroken(f"{name} does not verify: {error}") from None
    return link


def _check_order(links: Sequence[Link]) -> None:
    """Check that each link follows its predecessor: by digest, index, model, format and date."""
    current = links[-1].predicate.lifetime
    if current.index > 0 and len(links) == 1 and links[0].mechanism != "retrain":
        raise ChainBroken(
            f"the certificate is link {current.index} of its chain, but the pack contains no earlier one"
        )
    for older, newer in pairwise(links):
        before, after = older.predicate, newer.predicate
        if after.lifetime.previous_certificate_digest != older.digest:
            raise ChainBroken(f"{_name(newer)} does not name {_name(older)} as its predecessor")
        if after.lifetime.index != before.lifetime.index + 1:
            raise ChainBroken(f"{_name(newer)} follows {_name(older)} in the pack, so a link is missing")
        if (after.model_id, after.model) != (before.model_id, before.model):
            raise ChainBroken(f"{_name(older)} belongs to another model than {_name(newer)}")
        if after.format_version < before.format_version:
            raise ChainBroken(f"{_name(newer)} has an older format than {_name(older)}")
        if isinstance(after, Predicate) and after.issued_at < before.issued_at:
            raise ChainBroken(f"{_name(newer)} is dated before {_name(older)}")
    if links[0].predicate.lifetime.index != 0 and links[0].mechanism != "retrain":
        raise ChainBroken(
            "the chain in the pack begins after releases that count, so earlier links are missing"
        )


def _check_reuse(links: Sequence[Link]) -> None:
    """Check that no two certificates share an id or a file, and no two published ones a deletion set."""
    published = [
        link for link in links if link.mechanism != "discarded" and link.predicate.deletion_set.people
    ]
    for what, values in (
        ("id", [link.predicate.certificate_id for link in links]),
        ("file", [link.statement.weights_sha256 for link in links]),
        ("deletion set", [link.predicate.deletion_set.root for link in published]),
    ):
        if len(set(values)) != len(values):
            raise ChainBroken(f"two certificates of the chain have the same {what}")


def _check_sums(links: Sequence[Link]) -> None:
    totals = RunningTotals()
    for link in links:
        running = totals.add(link)
        try:
            _check_lifetime(link, running)
            _check_floating_point(link, sums=totals.sums_floating_point_noise(link))
        except ChainBroken as error:
            raise error if link is links[-1] else ChainBroken(f"{_name(link)}: {error}") from None


def _check_lifetime(link: Link, running: RunningSum) -> None:
    predicate, lifetime = link.predicate, link.predicate.lifetime
    if not agrees(lifetime.release_shift, release_shift(predicate)):
        raise ChainBroken(
            f"the shift of this release is {release_shift(predicate)!r}, not {lifetime.release_shift!r}"
        )
    for what, recomputed, stated in (
        ("shifts", running.shift, lifetime.running_shift),
        ("failure probabilities", running.failure_probability, lifetime.running_failure_probability),
        ("residuals", running.residual, lifetime.running_residual),
    ):
        if not agrees(stated, recomputed):
            raise ChainBroken(f"the {what} sum to {recomputed!r}, but the certificate states {stated!r}")
    if lifetime.assurance != running.assurance:
        raise ChainBroken(f"the weakest release in the sum is {running.assurance}, not {lifetime.assurance}")
    claim = predicate.guarantee.estimate or predicate.guarantee
    same_delta = isinstance(predicate, Predicate) and predicate.bound.rule != "retrain"
    if same_delta and lifetime.delta != claim.delta:
        raise ChainBroken(f"the lifetime's δ is {lifetime.delta!r}, but this release's is {claim.delta!r}")
    _check_total(lifetime, running)


def _check_total(lifetime: Lifetime | LifetimeV1, running: RunningSum) -> None:
    try:
        total = _total_epsilon(running, delta=lifetime.delta)
    except (ValueError, ArithmeticError) as error:
        raise ChainBroken(f"the lifetime's ε cannot be recomputed: {error}") from None
    if (total is None) != (lifetime.epsilon_total is None):
        raise ChainBroken("a lifetime must have a total ε if and only if none of its releases is heuristic")
    if total is None or lifetime.epsilon_total is None:
        return
    if total > 0 and lifetime.delta - running.failure_probability < SMALLEST_DELTA:
        raise ChainBroken(
            f"the lifetime's δ is less than {SMALLEST_DELTA:g}, the smallest δ that the noise supports"
        )
    if not agrees(lifetime.epsilon_total, total):
        raise ChainBroken(
            f"the lifetime's ε is {total!r} at δ = {lifetime.delta!r}, not {lifetime.epsilon_total!r}"
        )
    if lifetime.cap is not None and total > lifetime.cap * (1 + TOLERANCE):
        raise ChainBroken(f"the lifetime's ε, {total!r}, exceeds the cap of {lifetime.cap!r}")


def _check_floating_point(link: Link, *, sums: bool) -> None:
    """Check that the assumption floating-point-noise is named if and only if the sum includes format 1."""
    if not isinstance(link.predicate, Predicate):
        return
    named = "floating-point-noise" in link.predicate.guarantee.assumptions
    if named != sums:
        raise ChainBroken(
            "the sum includes a release of format 1, but the assumption floating-point-noise is not named"
            if sums
            else "the assumption floating-point-noise is named, but the sum includes no release of format 1"
        )


def _check_versions(links: Sequence[Link]) -> None:
    """Check that published versions count up. A discarded draw has the version it would have become."""
    published: Link | None = None
    for link in links:
        strict = isinstance(link.predicate, Predicate)
        if published is not None:
            _check_parent(link, published, strict=strict)
        elif strict and link.predicate.lifetime.index == 0 and link.predicate.parent.version != 0:
            raise ChainBroken("the model's first certificate does not start from version 0")
        elif strict and link.mechanism != "retrain" and link.predicate.parent.version != 0:
            raise ChainBroken(f"{_name(link)} starts from a version that no certificate covers")
        if link.mechanism != "discarded":
            published = link


def _check_parent(link: Link, published: Link, *, strict: bool) -> None:
    """Check that the parent is the last published version. Format 1 allowed an uncertified one in between."""
    parent, version = link.predicate.parent, published.predicate.version
    if parent.version < version:
        raise ChainBroken(f"the parent, version {parent.version}, is older than version {version}")
    if strict and parent.version != version:
        raise ChainBroken(
            f"the parent, version {parent.version}, is not version {version}, the last one published"
        )
    if parent.version == version and parent.weights_sha256 != published.statement.weights_sha256:
        raise ChainBroken(f"the parent's weights are not the weights certified as version {version}")
    erased = strict and link.predicate.deletion_set.people > 0
    retained = link.predicate.objective.retained_data_commitment
    if erased and retained == published.predicate.objective.retained_data_commitment:
        raise ChainBroken(f"{_name(link)} erased people but retains the same data as version {version}")


def _check_objectives(links: Sequence[Link]) -> None:
    """Check that only a retrain changes the objective. Format 1 did not promise this."""
    reference: Link | None = None
    for link in links:
        retrain = link.predicate.bound.rule == "retrain"
        if reference is not None and not retrain and isinstance(link.predicate, Predicate):
            _check_same_objective(link, reference)
        if link.mechanism != "discarded" or (reference is None and not retrain):
            reference = link


def _check_same_objective(link: Link, reference: Link) -> None:
    new, old = link.predicate.objective, reference.predicate.objective
    parts: list[tuple[str, object, object]] = [
        ("family", new.family, old.family),
        ("λ", new.regularisation, old.regularisation),
        ("anchor", new.anchor_sha256, old.anchor_sha256),
        ("number of weights", new.dimension, old.dimension),
        ("declared origins", new.origins.model_dump(), old.origins.model_dump()),
        ("representation", _represented_by(link), _represented_by(reference)),
        ("linearisation", _linearised_as(link), _linearised_as(reference)),
    ]
    if (
        link.predicate.format_version == reference.predicate.format_version
    ):  # format 1 described losses in free text
        parts.append(("loss", new.loss, old.loss))
    changed = [name for name, after, before in parts if after != before]
    if changed:
        raise ChainBroken(f"{_name(link)} changes the {', '.join(changed)} without a retrain")


def _represented_by(link: Link) -> tuple[object, ...] | None:
    """Return what must stay the same about a representation: the function, its graph and its declared origin.

    The way in which rows were kept apart, and the graph's name in a library, may change between releases.
    """
    objective = link.predicate.objective
    representation = objective.representation if isinstance(objective, Objective) else None
    if representation is None:
        return None
    declaration = representation.declaration
    return representation.digest, representation.graph_bytes, declaration.origin, declaration.licence


def _linearised_as(link: Link) -> object:
    """Return how the network was linearised, or None if it was not."""
    objective = link.predicate.objective
    return objective.linearisation if isinstance(objective, Objective) else None


def _name(link: Link) -> str:
    return f"link {link.predicate.lifetime.index}"


def _total(lifetime: Lifetime | LifetimeV1) -> str:
    if lifetime.epsilon_total is None:
        return "no total ε, because one of the releases is only an estimate"
    cap = "no cap" if lifetime.cap is None else f"cap {lifetime.cap:g}"
    return f"ε = {lifetime.epsilon_total:.6g} at δ = {lifetime.delta:g} ({cap})"


def _cap_change(links: Sequence[Link]) -> str:
    """Mention that the policy's cap changed between releases, which is allowed."""
    caps = {link.predicate.lifetime.cap for link in links}
    return "; the cap changed between releases" if len(caps) > 1 else ""
