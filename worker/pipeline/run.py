"""A job from claim to end. Every stage is safe to repeat: whoever comes after a crash starts from the top."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

from app import logs
from app.bootstrap import Services
from app.clock import now
from app.db import paths, transitions
from app.db.policy import Method
from app.db.states import BatchState, HeldReason, JobKind
from certificate.keys import Signer
from worker.pipeline.append import resolve_append
from worker.pipeline.certify import (
    Refusal,
    claim_for,
    noise_refusal,
    room_for,
)
from worker.pipeline.context import CannotContinue, Context
from worker.pipeline.evaluate import evaluate
from worker.pipeline.held import carry_out, keep, made_before, restore
from worker.pipeline.publish import publish, publish_nothing
from worker.pipeline.purge import purge
from worker.pipeline.quality import gate_refusal, measure
from worker.pipeline.register import register
from worker.pipeline.release import Draft, rounded, with_utility, write_draft
from worker.pipeline.resolve import Resolved, Swap, resolve
from worker.pipeline.scratch import working_folder
from worker.pipeline.solve import solve
from worker.signing import load_signer

log = logs.get("pipeline")


Fresh = Callable[[Context, Signer, Path], Refusal | None]
Refuse = Callable[[Context, Refusal], None]


def unlearn(services: Services, job_id: UUID, token: UUID) -> None:
    _release(Context.load(services, job_id, token), _publish_certified, _hold)


def append(services: Services, job_id: UUID, token: UUID) -> None:
    """New rows join the training data; the fit is released like an erasure's, with an empty deletion set."""
    _release(Context.load(services, job_id, token), _publish_appended, _refuse_append)


def _release(context: Context, fresh: Fresh, refuse: Refuse) -> None:
    assert context.batch is not None
    if context.batch.state != BatchState.PURGING and not _published(context, fresh, refuse):
        return
    purge(context)
    log.info("completed", batch=str(context.batch.id))


def _published(context: Context, fresh: Fresh, refuse: Refuse) -> bool:
    """False when the batch ends here: refused, or its draw destroyed by decision."""
    signer, held = load_signer(context.services.settings), made_before(context)
    if held is not None and held.decision is not None:
        return carry_out(context, held, signer)
    with working_folder(context.services.settings, context.token) as scratch:
        if held is not None:  # an attempt before this one died with it
            refusal = _finish(context, *restore(held), signer, scratch)
        else:
            refusal = fresh(context, signer, scratch)
    if refusal is not None:
        refuse(context, refusal)
    return refusal is None


def _publish_certified(context: Context, signer: Signer, scratch: Path) -> Refusal | None:
    context.step("resolve")
    resolved = resolve(context, scratch)
    if not resolved.records:
        publish_nothing(context, resolved)
        return None
    _show(context, resolved)
    return _publish(context, resolved, signer, scratch)


def _publish_appended(context: Context, signer: Signer, scratch: Path) -> Refusal | None:
    context.step("resolve")
    try:
        resolved = resolve_append(context, scratch)
    except CannotContinue as problem:
        return Refusal(HeldReason.NOT_CERTIFIABLE, str(problem))
    if not resolved.swap.joined and not resolved.swap.rewritten:  # every row was filtered
        publish_nothing(context, resolved)
        return None
    refusal = _publish(context, resolved, signer, scratch)
    return refusal and replace(refusal, detail=f"{refusal.reason}: {refusal.detail}")


def _publish(context: Context, resolved: Resolved, signer: Signer, scratch: Path) -> Refusal | None:
    """By the policy's method; by retraining where that is refused and the policy wants it."""
    policy = context.manifest.policy
    refusal = _attempt(context, resolved, policy.method, signer, scratch)
    if refusal is None or refusal.reason == HeldReason.QUALITY_GATE:  # a draw is never replaced by another
        return refusal
    if policy.method != "retrain" and policy.fallback == "retrain":
        log.info("falling back to retraining", reason=refusal.reason)
        refusal = _attempt(context, resolved, "retrain", signer, scratch)
    return refusal


def _show(context: Context, resolved: Resolved) -> None:
    """Counts and shift for the model's own team; a small set is not described, a large shift is an event."""
    limit, found = context.manifest.policy.max_kl_alert, resolved.shift
    with context.writing() as session:
        batch = context.batch_in(session)
        batch.records = resolved.records
        if resolved.is_a_crowd:
            batch.shift = {
                "kl_retained_original": rounded(found.kl_retained_original),
                "kl_original_retained": rounded(found.kl_original_retained),
            }
        if resolved.is_a_crowd and limit is not None and found.kl_retained_original > limit:
            log.warning("the deletion set shifts the classes past max_kl_alert")
            transitions.add_event(session, batch.id, "alert", {"max_kl": limit}, now())


def _attempt(
    context: Context, resolved: Resolved, mechanism: Method, signer: Signer, scratch: Path
) -> Refusal | None:
    lifetime = room_for(context, mechanism)
    if isinstance(lifetime, Refusal):
        return lifetime
    context.step("solve")
    solved = solve(context, resolved, mechanism, scratch)
    context.step("certify")
    claimed = claim_for(context, solved)
    if isinstance(claimed, Refusal):
        return claimed
    solved, claim = claimed
    if refusal := noise_refusal(solved.w, claim.sigma):
        return refusal
    context.step("release")
    draft = write_draft(context, resolved, solved, claim, lifetime)
    with context.writing() as session:
        keep(session, context.batch_in(session).id, draft, resolved.swap)
    return _finish(context, draft, resolved.swap, signer, scratch)


def _finish(context: Context, draft: Draft, swap: Swap, signer: Signer, scratch: Path) -> Refusal | None:
    """Look at the draw, which is kept and counts already, and publish it or hold it."""
    utility = measure(context, draft, swap, scratch)
    draft = with_utility(draft, utility)
    refusal = None if swap.appends else gate_refusal(context, draft, utility)
    if refusal is not None:
        return replace(refusal, draw=(draft, swap))
    publish(context, swap, draft, signer)
    return None


def _hold(context: Context, refusal: Refusal) -> None:
    with context.writing() as session:
        batch = context.batch_in(session)
        if refusal.draw is not None:
            keep(session, batch.id, *refusal.draw)
        transitions.hold_batch(session, batch, refusal.reason, refusal.detail, now())
        transitions.finish_job(session, context.job_id, context.token, now())


def _refuse_append(context: Context, refusal: Refusal) -> None:
    """The model stays as it is and the parts stay staged; the rows this attempt wrote are deleted.

    An append is not held: what it was refused for is told in words alone.
    """
    with context.writing() as session:
        context.services.storage.delete(paths.attempts(context.job_id))
        transitions.refuse_append(session, context.batch_in(session), refusal.detail, now())
        transitions.finish_job(session, context.job_id, context.token, now())


def audit(services: Services, job_id: UUID, token: UUID) -> None:
    """Imported when asked for: statistics are a third of a start, and every attempt is a start."""
    from worker.pipeline.audit import audit as run

    run(services, job_id, token)


JOBS: dict[JobKind, Callable[[Services, UUID, UUID], None]] = {
    JobKind.REGISTER: register,
    JobKind.UNLEARN: unlearn,
    JobKind.APPEND: append,
    JobKind.EVALUATE: evaluate,
    JobKind.AUDIT: audit,
}
