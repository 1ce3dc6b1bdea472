"""A job from claim to end. Every stage is safe to repeat: whoever comes after a crash starts from the top."""

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from app import logs
from app.bootstrap import Services
from app.clock import now
from app.db import transitions
from app.db.states import BatchState, JobKind
from worker.pipeline.certify import Refusal, budget_refusal, distance_refusal, lifetime_after, noise_refusal
from worker.pipeline.context import Context
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
        publish_nothing(context)
        return None
    refusal = _attempt(context, resolved, "tr", scratch)
    if refusal is not None and context.manifest.policy.fallback == "retrain":
        log.info("falling back to retraining", reason=refusal.reason)
        refusal = _attempt(context, resolved, "retrain", scratch)
    return refusal


def _attempt(context: Context, resolved: Resolved, mechanism: Mechanism, scratch: Path) -> Refusal | None:
    lifetime = lifetime_after(context, mechanism)
    if refusal := budget_refusal(lifetime):
        return refusal
    context.step("solve")
    solved: Solved = solve(context, resolved, mechanism, scratch)
    context.step("certify")
    if refusal := distance_refusal(context, solved.solution) or noise_refusal(context, solved.solution):
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


JOBS: dict[JobKind, Callable[[Services, UUID, UUID], None]] = {
    JobKind.REGISTER: register,
    JobKind.UNLEARN: unlearn,
}
