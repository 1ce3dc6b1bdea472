"""Checklist line 6: every certificate of the chain holds like the last one, and the sums add up.

A pack holds the certificates since the last retrain, or since the model's first. Each is verified by itself,
tied to the one before it, and its running sum is recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from certificate.assurance import check_assurance
from certificate.chain import (
    Link,
    RunningSum,
    RunningTotals,
    release_shift,
    since_last_retrain,
    total_epsilon,
)
from certificate.envelope import check_signature, from_base64
from certificate.envelope import parse as parse_envelope
from certificate.errors import ChainBroken, VerificationError
from certificate.keys import KeySet
from certificate.noise_check import check_noise
from certificate.pack import AnyPack, Predecessor, PredecessorV1
from certificate.predicate import Lifetime, Predicate
from certificate.predicate_v1 import LifetimeV1
from certificate.privacy import SMALLEST_DELTA
from certificate.statement import AnyStatement
from certificate.statement import parse as parse_statement
from certificate.tolerance import RELATIVE, agrees

_total_epsilon = lru_cache(maxsize=4096)(total_epsilon)  # a server verifies the same chain again and again

ORDER_NOT_PROVED = (
    "in which order the earlier certificates of the chain were logged: a pack of format 1 does not say"
)


def check_chain(statement: AnyStatement, digest: str, pack: AnyPack, keys: KeySet) -> str:
    """Check the whole chain, and return the detail to show or raise `ChainBroken`."""
    earlier = [_verified_link(predecessor, keys) for predecessor in pack.predecessors]
    links = [*earlier, Link(digest, statement)]
    _check_ties(links)
    _check_nothing_is_reused(links)
    _check_sums(links)
    _check_versions(links)
    _check_objectives(links)
    counted = since_last_retrain(links)
    discarded = sum(link.mechanism == "discarded" for link in counted)
    total = f"{_total(statement.predicate.lifetime)} over {len(counted)} releases, {discarded} discarded"
    return f"{total}{_caps(counted)}"


def _verified_link(predecessor: Predecessor | PredecessorV1, keys: KeySet) -> Link:
    """Verify an earlier certificate like the last: signature, statement, noise, assurance.

    A pack of format 1 does not say where it was logged. The chain of digests from a dated certificate then
    dates it.
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


def _check_ties(links: Sequence[Link]) -> None:
    """Each link names the one before it, is of the same model, and no older in date or format."""
    current = links[-1].predicate.lifetime
    if current.index > 0 and len(links) == 1 and links[0].mechanism != "retrain":
        raise ChainBroken(
            f"the certificate is number {current.index} of its chain and the pack holds no earlier one"
        )
    for older, newer in pairwise(links):
        before, after = older.predicate, newer.predicate
        if after.lifetime.previous_certificate_digest != older.digest:
            raise ChainBroken(f"{_name(newer)} does not name {_name(older)} as its predecessor")
        if after.lifetime.index != before.lifetime.index + 1:
            raise ChainBroken(f"{_name(newer)} follows {_name(older)}: a link is missing")
        if (after.model_id, after.model) != (before.model_id, before.model):
            raise ChainBroken(f"{_name(older)} is of another model")
        if after.format_version < before.format_version:
            raise ChainBroken(f"{_name(newer)} is of an older format than {_name(older)}")
        if isinstance(after, Predicate) and after.issued_at < before.issued_at:
            raise ChainBroken(f"{_name(newer)} is dated before {_name(older)}")
    if links[0].predicate.lifetime.index != 0 and links[0].mechanism != "retrain":
        raise ChainBroken("the pack's chain begins after releases that count; earlier links are missing")


def _check_nothing_is_reused(links: Sequence[Link]) -> None:
    """No two certificates share an id or a file, and no two published ones a deletion set."""
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
            f"this release's shift is {release_shift(predicate)!r}, not {lifetime.release_shift!r}"
        )
    for what, recomputed, stated in (
        ("shifts", running.shift, lifetime.running_shift),
        ("failure probabilities", running.failure_probability, lifetime.running_failure_probability),
        ("residuals", running.residual, lifetime.running_residual),
    ):
        if not agrees(stated, recomputed):
            raise ChainBroken(f"the {what} sum to {recomputed!r}, the certificate says {stated!r}")
    if lifetime.assurance != running.assurance:
        raise ChainBroken(f"the weakest release of the sum is {running.assurance}, not {lifetime.assurance}")
    claim = predicate.guarantee.estimate or predicate.guarantee
    new = isinstance(predicate, Predicate) and predicate.bound.rule != "retrain"
    if new and lifetime.delta != claim.delta:
        raise ChainBroken(f"the lifetime's δ is {lifetime.delta!r}, this release's is {claim.delta!r}")
    _check_total(lifetime, running)


def _check_total(lifetime: Lifetime | LifetimeV1, running: RunningSum) -> None:
    try:
        total = _total_epsilon(running, delta=lifetime.delta)
    except (ValueError, ArithmeticError) as error:
        raise ChainBroken(f"the lifetime's ε cannot be recomputed: {error}") from None
    if (total is None) != (lifetime.epsilon_total is None):
        raise ChainBroken("a lifetime has a total ε exactly when none of its releases is heuristic")
    if total is None or lifetime.epsilon_total is None:
        return
    if total > 0 and lifetime.delta - running.failure_probability < SMALLEST_DELTA:
        raise ChainBroken(f"the lifetime's δ is below {SMALLEST_DELTA:g}: the noise drawn shows no such δ")
    if not agrees(lifetime.epsilon_total, total):
        raise ChainBroken(
            f"the lifetime's ε is {total!r} at δ = {lifetime.delta!r}, not {lifetime.epsilon_total!r}"
        )
    if lifetime.cap is not None and total > lifetime.cap * (1 + RELATIVE):
        raise ChainBroken(f"the lifetime's ε, {total!r}, is past the cap of {lifetime.cap!r}")


def _check_floating_point(link: Link, *, sums: bool) -> None:
    """A sum that includes noise of format 1 says so among its assumptions, and no other does."""
    if not isinstance(link.predicate, Predicate):
        return
    named = "floating-point-noise" in link.predicate.guarantee.assumptions
    if named != sums:
        there = "is" if sums else "is not"
        raise ChainBroken(
            f"a release of format 1 {there} in the sum; the assumption floating-point-noise says otherwise"
        )


def _check_versions(links: Sequence[Link]) -> None:
    """Versions count up over published releases; a discarded draw has the number it would have had."""
    published: Link | None = None
    for link in links:
        strict = isinstance(link.predicate, Predicate)
        if published is not None:
            _check_parent(link, published, strict=strict)
        elif strict and link.predicate.lifetime.index == 0 and link.predicate.parent.version != 0:
            raise ChainBroken("the model's first certificate does not start from version 0")
        elif strict and link.mechanism != "retrain" and link.predicate.parent.version != 0:
            raise ChainBroken(f"{_name(link)} starts from a version that nothing certifies")
        if link.mechanism != "discarded":
            published = link


def _check_parent(link: Link, published: Link, *, strict: bool) -> None:
    """The parent is the last published version. In format 1 an uncertified version could stand between."""
    parent, version = link.predicate.parent, published.predicate.version
    if parent.version < version:
        raise ChainBroken(f"the parent, version {parent.version}, is older than version {version}")
    if strict and parent.version != version:
        raise ChainBroken(
            f"the parent, version {parent.version}, is not version {version}, the last published"
        )
    if parent.version == version and parent.weights_sha256 != published.statement.weights_sha256:
        raise ChainBroken(f"the parent's weights are not those certified as version {version}")
    erased = strict and link.predicate.deletion_set.people > 0
    retained = link.predicate.objective.retained_data_commitment
    if erased and retained == published.predicate.objective.retained_data_commitment:
        raise ChainBroken(f"{_name(link)} erased people and retains the same data as version {version}")


def _check_objectives(links: Sequence[Link]) -> None:
    """The objective stays what it was, unless a retrain minimises another one; format 1 promised nothing."""
    reference: Link | None = None
    for link in links:
        free = link.predicate.bound.rule == "retrain"
        if reference is not None and not free and isinstance(link.predicate, Predicate):
            _check_same_objective(link, reference)
        if link.mechanism != "discarded" or (reference is None and not free):
            reference = link


def _check_same_objective(link: Link, reference: Link) -> None:
    new, old = link.predicate.objective, reference.predicate.objective
    parts: list[tuple[str, object, object]] = [
        ("family", new.family, old.family),
        ("λ", new.regularisation, old.regularisation),
        ("anchor", new.anchor_sha256, old.anchor_sha256),
        ("number of weights", new.dimension, old.dimension),
        ("declared origins", new.origins.model_dump(), old.origins.model_dump()),
    ]
    if link.predicate.format_version == reference.predicate.format_version:  # format 1 worded losses freely
        parts.append(("loss", new.loss, old.loss))
    changed = [name for name, after, before in parts if after != before]
    if changed:
        raise ChainBroken(f"{_name(link)} changes the {', '.join(changed)} without a retrain")


def _name(link: Link) -> str:
    return f"link {link.predicate.lifetime.index}"


def _total(lifetime: Lifetime | LifetimeV1) -> str:
    if lifetime.epsilon_total is None:
        return "no total ε (an estimate is among the releases)"
    cap = "no cap" if lifetime.cap is None else f"cap {lifetime.cap:g}"
    return f"ε = {lifetime.epsilon_total:.6g} at δ = {lifetime.delta:g} ({cap})"


def _caps(links: Sequence[Link]) -> str:
    """A policy may change its cap; the report says that it did."""
    caps = {link.predicate.lifetime.cap for link in links}
    return "; the cap was changed on the way" if len(caps) > 1 else ""
