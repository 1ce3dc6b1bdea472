"""The stages of a batch, in order:

resolve → solve → certify → release → draw_record → quality_gate → publish → purge.

Every stage can be repeated. An attempt that follows a crash starts from the top, with two exceptions: it
continues with a draw that is already recorded, and it goes straight to the purge of a batch that is already
published.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

from app.core import logging
from app.core.clock import now
from app.db import paths, transitions
from app.db.states import BatchState, BatchStep, Decision, HeldReason
from app.db.tables import DrawRecord
from app.services import Services
from lethe.certificate.keys import Signer
from lethe.policy import Method
from worker.batch.certify import certify, terms_of
from worker.batch.draw_record import discard_draw, read_record, record_draw, restore_draw
from worker.batch.lifetime import read_chain_head, reserve
from worker.batch.publish import keep_current_version, publish
from worker.batch.purge import purge
from worker.batch.quality_gate import check_quality, score_draw
from worker.batch.release import Draw, with_utility, write_draft
from worker.batch.resolve import Resolution, resolve, resolve_append
from worker.batch.solve import approach, measures_curvature, solve
from worker.context import CannotContinue, JobContext, Refusal
from worker.data.scratch import working_folder
from worker.distributed.rank0 import Team
from worker.signing import load_signer

log = logging.get_logger("batch")

Resolve = Callable[[JobContext, Path], Resolution]


def unlearn(services: Services, job_id: UUID, token: UUID, team: Team | None = None) -> None:
    """Erase the people of a batch from its model. A batch that cannot be released is held."""
    context = JobContext.load(services, job_id, token, team)
    refusal = _run_stages(context, resolve)
    if refusal is not None:
        _hold(context, refusal)


def append(services: Services, job_id: UUID, token: UUID, team: Team | None = None) -> None:
    """Add staged rows to a model's training data. An append that cannot be released is refused."""
    context = JobContext.load(services, job_id, token, team)
    refusal = _run_stages(context, resolve_append)
    if refusal is not None:
        _refuse_append(context, refusal.detail)


def _run_stages(context: JobContext, resolve_rows: Resolve) -> Refusal | None:
    """Run the stages that are left to do. Return a refusal if the batch cannot be released."""
    assert context.batch is not None
    if context.batch.state != BatchState.PURGING:
        signer, record = load_signer(context.services.settings), read_record(context)
        if record is not None and record.decision == Decision.DISCARD:
            discard_draw(context, restore_draw(record).draft, signer)
            return None
        refusal = _release(context, resolve_rows, record, signer)
        if refusal is not None:
            return refusal
    purge(context)
    log.info("completed", batch=str(context.batch.id))
    return None


def _release(
    context: JobContext, resolve_rows: Resolve, record: DrawRecord | None, signer: Signer
) -> Refusal | None:
    """Publish a new version: from the rows, or from the draw that an earlier attempt recorded.

    A draw that its owner has approved is published as it is, without passing the quality gate again.
    """
    with working_folder(context.services.settings, context.token) as scratch:
        draw: Draw | Refusal
        if record is not None:
            draw = restore_draw(record)
        else:
            context.step(BatchStep.RESOLVE)
            try:
                resolution = resolve_rows(context, scratch)
            except CannotContinue as problem:
                return Refusal(HeldReason.NOT_CERTIFIABLE, str(problem))
            if not resolution.changes_training_data:
                keep_current_version(context, resolution.changes)
                return None
            draw = _make_draw(context, resolution, scratch)
            if isinstance(draw, Refusal):
                return draw
        if record is None or record.decision != Decision.APPROVE:
            draw, refusal = _pass_quality_gate(context, draw, scratch)
            if refusal is not None:
                return refusal
    publish(context, draw, signer)
    return None


def _make_draw(context: JobContext, resolution: Resolution, scratch: Path) -> Draw | Refusal:
    """Make one draw by the policy's method, or by retraining if that is refused and the policy allows it."""
    policy = context.manifest.policy
    draw = _make_draw_by(policy.method, context, resolution, scratch)
    if isinstance(draw, Refusal) and policy.method != "retrain" and policy.fallback == "retrain":
        log.info("falling back to retraining", reason=draw.reason)
        draw = _make_draw_by("retrain", context, resolution, scratch)
    return draw


def _make_draw_by(
    mechanism: Method, context: JobContext, resolution: Resolution, scratch: Path
) -> Draw | Refusal:
    """Solve, certify, draw and record the draw by one mechanism."""
    manifest, caveats = context.manifest, context.caveats
    terms = terms_of(manifest, mechanism, caveats)
    lifetime = reserve(manifest.policy, read_chain_head(context), mechanism, terms)
    if isinstance(lifetime, Refusal):
        return lifetime
    context.step(BatchStep.SOLVE)
    candidate = solve(context, resolution, mechanism, scratch)
    context.step(BatchStep.CERTIFY, short=not measures_curvature(manifest, candidate))
    candidate = approach(context, candidate)
    claim = certify(manifest, caveats, candidate)
    if isinstance(claim, Refusal):
        return claim
    context.step(BatchStep.RELEASE)
    draft = write_draft(context, resolution, candidate, claim, lifetime)
    draw = Draw(draft, resolution.changes)
    record_draw(context, draw)
    return draw


def _pass_quality_gate(context: JobContext, draw: Draw, scratch: Path) -> tuple[Draw, Refusal | None]:
    """Score a recorded draw. Return it with its scores, and a refusal if the quality gate holds it.

    Appends are scored but not gated, because no person waits for them.
    """
    utility = score_draw(context, draw, scratch)
    draw = replace(draw, draft=with_utility(draw.draft, utility))
    if draw.changes.appends:
        return draw, None
    gate = context.manifest.policy.quality_gate
    refusal = check_quality(gate, utility, mechanism=draw.draft.mechanism)
    if refusal is not None:
        record_draw(context, draw)  # the owner decides about the draw with its scores
    return draw, refusal


def _hold(context: JobContext, refusal: Refusal) -> None:
    """Hold the batch until someone decides what happens to it."""
    with context.writing() as session:
        context.write_steps(session)
        transitions.hold_batch(session, context.batch_in(session), refusal.reason, refusal.detail, now())
        transitions.finish_job(session, context.job_id, context.token, now())


def _refuse_append(context: JobContext, reason: str) -> None:
    """End an append that cannot be released. The model and the staged parts stay as they are.

    An append is never held, so the rows that its attempts wrote are deleted.
    """
    with context.writing() as session:
        context.services.storage.delete(paths.attempts(context.job_id))
        transitions.refuse_append(session, context.batch_in(session), reason, now())
        transitions.finish_job(session, context.job_id, context.token, now())
