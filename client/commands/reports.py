"""`lethe ledger`, `lethe evaluate`, `lethe audit`."""

from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from client.commands import tables
from client.commands.session import NO, Session, Timeout, Unusable, verb

if TYPE_CHECKING:
    from client.report_answers import Audit, Evaluation

Model = Annotated[str, typer.Argument(help="Name of the model.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Until it has ended.")]


@verb
def ledger(session: Session, model: Model) -> None:
    """What each release spent, and what the model has left before it must retrain."""
    found = session.api.models.ledger(model)
    columns = ("version", "mechanism", "shift", "running ε", "ε of those erased", "certificate", "issued")
    entries = [
        (
            e.version,
            e.mechanism,
            e.shift,
            e.running_epsilon,
            e.subjects_epsilon,
            e.certificate_id,
            e.issued_at,
        )
        for e in found.entries
    ]
    session.show(
        found,
        tables.facts(
            {
                "model": found.model,
                "spent": f"ε = {tables.told(found.running_epsilon)} at δ = {found.delta:g}",
                "cap": f"ε = {found.lifetime_epsilon:g}",
                "releases left": found.releases_left,
            }
        ),
        tables.rows(columns, entries) if entries else "Nothing was released yet.",
    )


@verb
def evaluate(session: Session, model: Model, wait: Wait = True, timeout: Timeout = None) -> int | None:
    """Score the current version on the holdout, beside retraining."""
    found = session.api.evaluations.start(model)
    if wait:
        found = session.api.evaluations.wait(model, found.id, timeout=timeout)
    session.show(found, _evaluation(found))
    return NO if found.state == "failed" else None


@verb
def audit(
    session: Session,
    audited: Annotated[str, typer.Argument(metavar="CERTIFICATE", help="Its id, or a model's name.")],
    wait: Wait = True,
    timeout: Timeout = None,
) -> int | None:
    """Replay a release and test whether its noise is as certified. Exit status 1 when it is not."""
    certificate_id = _certificate(session, audited)
    found = session.api.audits.start(certificate_id)
    if wait:
        found = session.api.audits.wait(certificate_id, found.id, timeout=timeout)
    session.show(found, _audit(found))
    consistent = found.result is None or found.result.consistent
    return NO if found.state == "failed" or not consistent else None


def _certificate(session: Session, audited: str) -> UUID:
    """Of a model: that of its current version, the only one that can be replayed."""
    try:
        return UUID(audited)
    except ValueError:
        pass
    for version in session.api.versions.list(audited):
        if version.state == "current" and version.certificate_id is not None:
            return version.certificate_id
    raise Unusable(f"the current version of {audited} has no certificate: nothing was erased yet")


def _evaluation(found: "Evaluation") -> Any:
    facts: dict[str, Any] = {"evaluation": found.id, "version": found.version, "state": found.state}
    facts["error"] = found.error
    if (result := found.result) is not None:
        for name, scores in (("current", result.current), ("retrained", result.retrained)):
            told = {"F1": scores.micro_f1, "RMSE": scores.rmse, "R²": scores.r_squared, "loss": scores.loss}
            facts[name] = {label: value for label, value in told.items() if value is not None}
        facts["seconds"] = {"unlearn": result.seconds.current, "retrain": result.seconds.retrained}
        if (drop := result.delta_f1) is not None:
            facts["ΔF1"] = f"{drop.points:.2f} points ({drop.low:.2f} to {drop.high:.2f})"
    return tables.facts(facts)


def _audit(found: "Audit") -> Any:
    facts: dict[str, Any] = {"audit": found.id, "version": found.version, "state": found.state}
    facts["error"] = found.error
    if (result := found.result) is not None:
        facts |= {"verdict": result.verdict, "summary": result.summary, "p": result.p_value}
    return tables.facts(facts)
