"""`lethe ledger`, `lethe evaluate` and `lethe audit`."""

from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from lethe.cli.context import CommandContext, Timeout, UsageError, command
from lethe.cli.exit_status import ExitStatus
from lethe.cli.ids import find_certificate
from lethe.cli.names import check_model_name
from lethe.cli.tables import details, format_value, table

if TYPE_CHECKING:
    from lethe.client.responses import Audit, Evaluation, Ledger

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model.", callback=check_model_name)]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the result.")]


@command
def ledger(context: CommandContext, model: Model) -> None:
    """Show the privacy loss of each release, and what is left of the budget."""
    result = context.api.models.ledger(model)
    columns = (
        "Version",
        "Mechanism",
        "Shift",
        "Total ε",
        "ε of those erased",
        "Certificate",
        "Issued",
    )
    rows = [
        (
            e.version,
            e.mechanism,
            e.shift,
            e.running_epsilon,
            e.subjects_epsilon,
            e.certificate_id,
            e.issued_at,
        )
        for e in result.entries
    ]
    context.show(
        result,
        details(
            {
                "Model": result.model,
                "Spent": _spent(result),
                "Budget": f"ε = {result.lifetime_epsilon:g}",
                "Releases left": "no limit: the policy retrains for every batch"
                if result.releases_left is None
                else result.releases_left,
            }
        ),
        table(columns, rows) if rows else "Nothing has been released yet.",
    )


@command
def evaluate(context: CommandContext, model: Model, wait: Wait = True, timeout: Timeout = None) -> int | None:
    """Score the current version on the holdout, next to a retrained model.

    The exit status is 1 if the evaluation fails.
    """
    report = context.api.evaluations.start(model)
    if wait:
        report = context.api.evaluations.wait(model, report.id, timeout=timeout)
    context.show(report, _evaluation_details(report))
    return ExitStatus.NO if report.state == "failed" else None


@command
def audit(
    context: CommandContext,
    audited: Annotated[
        str, typer.Argument(metavar="CERTIFICATE", help="ID of a certificate, or the name of a model.")
    ],
    wait: Wait = True,
    timeout: Timeout = None,
) -> int | None:
    """Replay a release and test whether its noise is as certified.

    Only the current version of a model can be audited. The exit status is 1 if the noise is not as certified.
    """
    certificate_id = _find_certificate(context, audited)
    report = context.api.audits.start(certificate_id)
    if wait:
        report = context.api.audits.wait(certificate_id, report.id, timeout=timeout)
    context.show(report, _audit_details(report))
    consistent = report.result is None or report.result.consistent
    return ExitStatus.NO if report.state == "failed" or not consistent else None


def _spent(ledger: "Ledger") -> str:
    if ledger.running_epsilon is None:
        return "unknown, because it includes an estimate without a proved guarantee"
    return f"ε = {format_value(ledger.running_epsilon)} at δ = {ledger.delta:g}"


def _find_certificate(context: CommandContext, audited: str) -> UUID:
    """Return the certificate with this ID, or that of the current version of the model with this name."""
    from lethe.client.errors import NotFound

    try:
        return UUID(audited)
    except ValueError:
        pass
    try:
        versions = context.api.versions.list(audited)
    except NotFound:
        if not set(audited) <= set("0123456789abcdef-"):
            raise
        return find_certificate(context, audited)
    for version in versions:
        if version.state == "current" and version.certificate_id is not None:
            return version.certificate_id
    raise UsageError(f"the current version of {audited} has no certificate: nobody has been erased yet")


def _evaluation_details(report: "Evaluation") -> Any:
    labels: dict[str, Any] = {
        "Evaluation": report.id,
        "Version": report.version,
        "State": report.state,
        "Error": report.error,
    }
    if (result := report.result) is not None:
        for name, scores in (("Current", result.current), ("Retrained", result.retrained)):
            values = {
                "F1": scores.micro_f1,
                "RMSE": scores.rmse,
                "R²": scores.r_squared,
                "loss": scores.loss,
            }
            labels[name] = {label: value for label, value in values.items() if value is not None}
        labels["Seconds"] = {"unlearning": result.seconds.current, "retraining": result.seconds.retrained}
        if result.passes is not None:
            labels["Passes"] = {"unlearning": result.passes.current, "retraining": result.passes.retrained}
        if (drop := result.delta_f1) is not None:
            labels["ΔF1"] = (
                f"{drop.points:.2f} points ({100 * drop.confidence:g} % interval: "
                f"{drop.low:.2f} to {drop.high:.2f})"
            )
    return details(labels)


def _audit_details(report: "Audit") -> Any:
    labels: dict[str, Any] = {
        "Audit": report.id,
        "Version": report.version,
        "State": report.state,
        "Error": report.error,
    }
    if (result := report.result) is not None:
        labels |= {"Verdict": result.verdict, "Summary": result.summary, "p-value": result.p_value}
    return details(labels)
