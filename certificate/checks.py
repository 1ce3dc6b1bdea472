"""The checks of the checklist that recompute: noise, chain, log, evidence, receipt.

Each returns the detail to show when it holds and raises its `VerificationError` when it does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from certificate import merkle
from certificate.chain import Link, RunningSum, release_shift, running_sum, since_last_retrain, total_epsilon
from certificate.envelope import Envelope, check_signature, from_base64
from certificate.envelope import parse as parse_envelope
from certificate.errors import ChainBroken, LogProofInvalid, NoiseTooSmall, VerificationError
from certificate.keys import KeySet
from certificate.note import Checkpoint, verify_checkpoint
from certificate.pack import EarlierHead, Pack, Predecessor
from certificate.predicate import Lifetime, Predicate
from certificate.predicate_v1 import LifetimeV1
from certificate.privacy import (
    COORDINATE_RESIDUAL,
    LARGEST_EPSILON,
    SMALLEST_DELTA,
    classical_sigma,
    delta_left,
    grid_step,
    sigma_for,
)
from certificate.statement import AnyPredicate, AnyStatement
from certificate.statement import parse as parse_statement
from certificate.tolerance import RELATIVE, agrees, understates


def check_noise(predicate: AnyPredicate) -> str:
    """Line 4: σ is at least what (Δ*, ε, δ less p and the residual) needs, and the grid is the public one."""
    if isinstance(predicate, Predicate):
        _check_grid(predicate)
    if predicate.bound.rule == "retrain":
        return "a retrain is a function of the retained data alone: it needs no noise"
    claim = predicate.guarantee.estimate or predicate.guarantee
    epsilon, delta = claim.epsilon, claim.delta
    if not epsilon or not delta:
        raise NoiseTooSmall(f"no noise gives (ε, δ) = ({epsilon}, {delta})")
    distance, sigma = predicate.bound.distance_target, predicate.noise.sigma
    remaining = delta_left(
        delta=delta,
        failure_probability=predicate.bound.failure_probability,
        residual=predicate.noise.residual,
        epsilon=epsilon,
    )
    if remaining <= 0:
        raise NoiseTooSmall("the failure probability uses up all of δ")
    if predicate.guarantee.assurance in ("proved", "conditional"):
        _check_drawable(epsilon, remaining)
    needed = _needed_sigma(predicate, epsilon, remaining, distance)
    if understates(sigma, needed):
        raise NoiseTooSmall(
            f"σ is {sigma!r}; Δ* = {distance!r}, ε = {epsilon!r} and δ - p = {remaining!r} need {needed!r}"
        )
    label = "estimate only: " if predicate.guarantee.estimate else ""
    target = f"{predicate.noise.calibration}, for ε = {epsilon:g}, δ = {delta:g}"
    return f"{label}σ = {sigma:.6g} ≥ {needed:.6g}, {target}"


def _check_grid(predicate: Predicate) -> None:
    noise, dimension = predicate.noise, predicate.objective.dimension
    if noise.grid_step != grid_step(noise.sigma):
        raise NoiseTooSmall(
            f"the grid step is {noise.grid_step!r}; for σ = {noise.sigma!r} it is {grid_step(noise.sigma)!r}"
        )
    if noise.residual < dimension * COORDINATE_RESIDUAL:
        raise NoiseTooSmall(f"the residual {noise.residual!r} is too small for {dimension} weights")


def _check_drawable(epsilon: float, delta: float) -> None:
    """Beyond these the cut tail of the noise, not the exact Gaussian, would decide."""
    if delta < SMALLEST_DELTA:
        raise NoiseTooSmall(
            f"δ - p = {delta!r} is below {SMALLEST_DELTA:g}: noise drawn in floating point shows no such δ"
        )
    if epsilon > LARGEST_EPSILON:
        raise NoiseTooSmall(
            f"ε = {epsilon!r} is above {LARGEST_EPSILON:g}: noise drawn in floating point shows no such ε"
        )


def _needed_sigma(predicate: AnyPredicate, epsilon: float, delta: float, distance: float) -> float:
    if predicate.noise.calibration == "classical" and epsilon >= 1:
        raise NoiseTooSmall(f"the classical calibration is proved only for ε < 1, not for {epsilon!r}")
    needed_sigma = classical_sigma if predicate.noise.calibration == "classical" else sigma_for
    try:
        return needed_sigma(epsilon=epsilon, delta=delta, distance=distance)
    except (ValueError, ArithmeticError) as error:
        raise NoiseTooSmall(f"σ cannot be recomputed: {error}") from None


def check_chain(
    statement: AnyStatement, digest: str, predecessors: Sequence[Predecessor], keys: KeySet
) -> str:
    """Line 6: every link leads to the one before, and the running sum is the sum of the links."""
    earlier = [_link(predecessor, keys) for predecessor in predecessors]
    current = Link(digest, statement)
    links = [*earlier, current]
    _check_links(links)
    _check_parent(statement.predicate, earlier)
    running = running_sum(links)
    _check_lifetime(statement.predicate, running)
    counted = since_last_retrain(links)
    discarded = sum(link.mechanism == "discarded" for link in counted)
    return f"{_total(statement.predicate.lifetime)} over {len(counted)} releases, {discarded} discarded"


def _link(predecessor: Predecessor, keys: KeySet) -> Link:
    try:
        envelope = parse_envelope(from_base64(predecessor.envelope))
        # No place in the log is needed: the digest chain from a dated certificate dates its predecessors.
        check_signature(envelope, keys, position=None)
        return Link(envelope.digest, parse_statement(envelope.payload))
    except VerificationError as error:
        raise ChainBroken(f"a predecessor does not verify: {error}") from None


def _check_links(links: Sequence[Link]) -> None:
    current = links[-1].predicate.lifetime
    if current.index > 0 and len(links) == 1:
        raise ChainBroken(
            f"the certificate is number {current.index} of its chain and the pack holds no earlier one"
        )
    for older, newer in pairwise(links):
        before, after = older.predicate.lifetime, newer.predicate.lifetime
        if after.previous_certificate_digest != older.digest:
            raise ChainBroken(f"link {after.index} does not name link {before.index} as its predecessor")
        if after.index != before.index + 1:
            raise ChainBroken(f"link {after.index} follows link {before.index}: a link is missing")
        if newer.predicate.model_id != older.predicate.model_id:
            raise ChainBroken(f"link {before.index} is of another model")
    if links[0].predicate.lifetime.index != 0 and since_last_retrain(links)[0].mechanism != "retrain":
        raise ChainBroken("the pack's chain begins after releases that count; earlier links are missing")


def _check_parent(predicate: AnyPredicate, earlier: Sequence[Link]) -> None:
    """A version made by other means (a fit on new rows) may stand between, but none may be contradicted."""
    published = next((link for link in reversed(earlier) if link.mechanism != "discarded"), None)
    if published is None:
        return
    version = published.predicate.version
    if predicate.parent.version < version:
        raise ChainBroken(f"the parent, version {predicate.parent.version}, is older than version {version}")
    same = predicate.parent.version == version
    if same and predicate.parent.weights_sha256 != published.statement.weights_sha256:
        raise ChainBroken(f"the parent's weights are not those certified as version {version}")


def _check_lifetime(predicate: AnyPredicate, running: RunningSum) -> None:
    lifetime = predicate.lifetime
    if not agrees(lifetime.release_shift, release_shift(predicate)):
        raise ChainBroken(
            f"this release's shift is {release_shift(predicate)!r}, not {lifetime.release_shift!r}"
        )
    if not agrees(lifetime.running_shift, running.shift):
        raise ChainBroken(
            f"the shifts sum to {running.shift!r}, the certificate says {lifetime.running_shift!r}"
        )
    if not agrees(lifetime.running_failure_probability, running.failure_probability):
        raise ChainBroken(
            f"the failure probabilities sum to {running.failure_probability!r}, "
            f"the certificate says {lifetime.running_failure_probability!r}"
        )
    if lifetime.assurance != running.assurance:
        raise ChainBroken(f"the weakest release of the sum is {running.assurance}, not {lifetime.assurance}")
    _check_total(lifetime, running)


def _check_total(lifetime: Lifetime | LifetimeV1, running: RunningSum) -> None:
    try:
        total = total_epsilon(running, delta=lifetime.delta)
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


def _total(lifetime: Lifetime | LifetimeV1) -> str:
    if lifetime.epsilon_total is None:
        return "no total ε (an estimate is among the releases)"
    cap = "no cap" if lifetime.cap is None else f"cap {lifetime.cap:g}"
    return f"ε = {lifetime.epsilon_total:.6g} at δ = {lifetime.delta:g} ({cap})"


def check_log(pack: Pack, envelope_digest: str, keys: KeySet, since: EarlierHead | None) -> str:
    """Line 7: the envelope's digest is the leaf at its place, under a head that extends the earlier one."""
    head = verify_checkpoint(pack.log.checkpoint, keys)
    leaf = merkle.leaf_hash(bytes.fromhex(envelope_digest))
    path = [bytes.fromhex(step) for step in pack.log.path]
    if not merkle.verify_inclusion(leaf, pack.log.index, head.size, path, head.root):
        raise LogProofInvalid(f"the certificate is not at place {pack.log.index} of the tree of {head.size}")
    detail = f"place {pack.log.index} of {head.size} in {head.origin}"
    return detail if since is None else f"{detail}; {_check_since(pack, head, since, keys)}"


def _check_since(pack: Pack, head: Checkpoint, since: EarlierHead, keys: KeySet) -> str:
    earlier = verify_checkpoint(since.checkpoint, keys)
    if earlier.origin != head.origin:
        raise LogProofInvalid("the earlier tree head is of another log")
    if earlier.size > head.size:
        raise LogProofInvalid(
            f"the earlier tree head has {earlier.size} leaves and the pack's only {head.size}: "
            "the log was truncated, or the pack is older than the head"
        )
    known = next((proof.path for proof in pack.consistency if proof.old_size == earlier.size), ())
    path = [bytes.fromhex(step) for step in since.path or known]
    if not merkle.verify_consistency(earlier.size, head.size, path, earlier.root, head.root):
        raise LogProofInvalid(f"the log does not extend the earlier tree head of {earlier.size} leaves")
    return f"extends the earlier head of {earlier.size}"


def read_envelope(pack: Pack) -> Envelope:
    return parse_envelope(from_base64(pack.envelope))
