"""A job from claim to end. Every stage is safe to repeat: whoever comes after a crash starts from the top."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

from app import logs
from app.bootstrap import Services
from app.clock import now
from app.db import paths, transitions
from app.db.states import BatchState, HeldReason, JobKind
from certificate.keys import Signer
from worker.pipeline.append import resolve_append
from worker.pipeline.audit import audit
from worker.pipeline.certify import (
    Refusal,
    budget_refusal,
    distance_refusal,
    lifetime_after,
    noise_refusal,
    release_shift,
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
from worker.pipeline.solve import Mechanism, Solved, solve
from worker.signing import load_signer

log = logs.get("pipeline")


def unlearn(services: Services, job_id: UUID, token: UUID) -> None:
    context = Context.load(services, job_id, token)
    assert context.batch is not None
    if context.batch.state != BatchState.PURGING and not _published(context):
        return
    purge(context)
    log.info("completed", batch=str(context.batch.id))


def _published(context: Context) -> bool:
    """False when the batch ends here: held for a decision, or its draw destroyed by one."""
    signer, held = load_signer(context.services.settings), made_before(context)
    if held is not None and held.decision is not None:
        return carry_out(context, held, signer)
    with working_folder(context.services.settings, context.token) as scratch:
        if held is not None:  # an attempt before this one died with it
            refusal = _finish(context, *restore(held), signer, scratch)
        else:
            refusal = _publish_certified(context, signer, scratch)
    if refusal is not None:
        _hold(context, refusal)
    return refusal is None


def _publish_certified(context: Context, signer: Signer, scratch: Path) -> Refusal | None:
    context.step("resolve")
    resolved = resolve(context, scratch)
    if not resolved.records:
        publish_nothing(context, resolved)
        return None
    _show(context, resolved)
    return _publish(context, resolved, signer, scratch)


def append(services: Services, job_id: UUID, token: UUID) -> None:
    """New rows join the training data; the fit is released like an erasure's, with an empty deletion set."""
    context = Context.load(services, job_id, token)
    assert context.batch is not None
    if context.batch.state != BatchState.PURGING and not _appended(context):
        return
    purge(context)
    log.info("appended", batch=str(context.batch.id))


def _appended(context: Context) -> bool:
    signer, held = load_signer(context.services.settings), made_before(context)
    if held is not None and held.decision is not None:
        return carry_out(context, held, signer)
    with working_folder(context.services.settings, context.token) as scratch:
        if held is not None:
            _finish(context, *restore(held), signer, scratch)
            return True
        reason = _publish_appended(context, signer, scratch)
    if reason is not None:
        _refuse_append(context, reason)
    return reason is None


def _publish_appended(context: Context, signer: Signer, scratch: Path) -> str | None:
    context.step("resolve")
    try:
        resolved = resolve_append(context, scratch)
    except CannotContinue as problem:
        return str(problem)
    if not resolved.swap.joined and not resolved.swap.rewritten:  # every row was filtered
        publish_nothing(context, resolved)
        return None
    refusal = _publish(context, resolved, signer, scratch)
    return None if refusal is None else f"{refusal.reason}: {refusal.detail}"


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
        if limit is not None and found.kl_retained_original > limit:
            log.warning("the deletion set shifts the classes past max_kl_alert")
            transitions.add_event(session, batch.id, "alert", {"max_kl": limit}, now())


def _attempt(
    context: Context, resolved: Resolved, mechanism: Mechanism, signer: Signer, scratch: Path
) -> Refusal | None:
    lifetime = lifetime_after(context, mechanism, release_shift(context, mechanism))
    if refusal := budget_refusal(lifetime):
        return refusal
    context.step("solve")
    solved: Solved = solve(context, resolved, mechanism, scratch)
    context.step("certify")
    if refusal := distance_refusal(context, solved.solution) or noise_refusal(context, solved.solution.w):
        return refusal
    context.step("release")
    draft = write_draft(context, resolved, solved, lifetime)
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


def _refuse_append(context: Context, reason: str) -> None:
    """The model stays as it is and the parts stay staged; the rows this attempt wrote are deleted."""
    with context.writing() as session:
        context.services.storage.delete(paths.attempts(context.job_id))
        transitions.refuse_append(session, context.batch_in(session), reason, now())
        transitions.finish_job(session, context.job_id, context.token, now())


JOBS: dict[JobKind, Callable[[Services, UUID, UUID], None]] = {
    JobKind.REGISTER: register,
    JobKind.UNLEARN: unlearn,
    JobKind.APPEND: append,
    JobKind.EVALUATE: evaluate,
    JobKind.AUDIT: audit,
}
