"""A job from claim to end. Every stage is safe to repeat: whoever comes after a crash starts from the top."""

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from app import logs
from app.bootstrap import Services
from app.clock import now
from app.db import paths, transitions
from app.db.states import BatchState, JobKind
from worker.pipeline.append import resolve_append
from worker.pipeline.certify import Refusal, budget_refusal, distance_refusal, lifetime_after, noise_refusal
from worker.pipeline.context import CannotContinue, Context
from worker.pipeline.publish import publish, publish_nothing
from worker.pipeline.purge import purge
from worker.pipeline.register import register
from worker.pipeline.release import release
from worker.pipeline.resolve import Resolved, resolve
from worker.pipeline.scratch import working_folder
from worker.pipeline.solve import Mechanism, Solved, solve
from worker.signing import load_signer

log = logs.get("pipeline")


def unlearn(services: Services, job_id: UUID, token: UUID) -> None:
    context = Context.load(services, job_id, token)
    assert context.batch is not None
    if context.batch.state != BatchState.PURGING:  # else: published already, only the clean-up is left
        with working_folder(services.settings, token) as scratch:
            refusal = _publish_certified(context, scratch)
        if refusal is not None:
            _hold(context, refusal)
            return
    purge(context)
    log.info("completed", batch=str(context.batch.id))


def _publish_certified(context: Context, scratch: Path) -> Refusal | None:
    context.step("resolve")
    resolved = resolve(context, scratch)
    if not resolved.records:
        publish_nothing(context, resolved)
        return None
    _alert(context, resolved)
    return _publish(context, resolved, scratch)


def append(services: Services, job_id: UUID, token: UUID) -> None:
    """New rows join the training data; the fit is released like an erasure's, with an empty deletion set."""
    context = Context.load(services, job_id, token)
    assert context.batch is not None
    if context.batch.state != BatchState.PURGING:
        with working_folder(services.settings, token) as scratch:
            refusal = _publish_appended(context, scratch)
        if refusal is not None:
            _refuse_append(context, refusal)
            return
    purge(context)
    log.info("appended", batch=str(context.batch.id))


def _publish_appended(context: Context, scratch: Path) -> str | None:
    context.step("resolve")
    try:
        resolved = resolve_append(context, scratch)
    except CannotContinue as problem:
        return str(problem)
    if not resolved.joined and not resolved.rewritten:  # every row was filtered
        publish_nothing(context, resolved)
        return None
    refusal = _publish(context, resolved, scratch)
    return None if refusal is None else f"{refusal.reason}: {refusal.detail}"


def _publish(context: Context, resolved: Resolved, scratch: Path) -> Refusal | None:
    """By the policy's method; by retraining where that is refused and the policy wants it."""
    policy = context.manifest.policy
    refusal = _attempt(context, resolved, policy.method, scratch)
    if refusal is not None and policy.method != "retrain" and policy.fallback == "retrain":
        log.info("falling back to retraining", reason=refusal.reason)
        refusal = _attempt(context, resolved, "retrain", scratch)
    return refusal


def _alert(context: Context, resolved: Resolved) -> None:
    """How far the classes shift stays in the evidence; that it is past the policy's limit is an event."""
    limit = context.manifest.policy.max_kl_alert
    if limit is None or resolved.shift.kl_retained_original <= limit:
        return
    log.warning("the deletion set shifts the classes past max_kl_alert")
    with context.writing() as session:
        transitions.add_event(session, context.batch_in(session).id, "alert", {"max_kl": limit}, now())


def _attempt(context: Context, resolved: Resolved, mechanism: Mechanism, scratch: Path) -> Refusal | None:
    lifetime = lifetime_after(context, mechanism)
    if refusal := budget_refusal(lifetime):
        return refusal
    context.step("solve")
    solved: Solved = solve(context, resolved, mechanism, scratch)
    context.step("certify")
    if refusal := distance_refusal(context, solved.solution) or noise_refusal(context, solved.solution.w):
        return refusal
    context.step("release")
    signer = load_signer(context.services.settings)
    made = release(context, resolved, solved, lifetime, signer)
    publish(context, resolved, solved, made, lifetime.index, signer)
    return None


def _hold(context: Context, refusal: Refusal) -> None:
    with context.writing() as session:
        transitions.hold_batch(session, context.batch_in(session), refusal.reason, refusal.detail, now())
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
}
