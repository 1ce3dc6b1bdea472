"""The monthly report for the privacy officer, as a page to read or print and as CSV."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response
from sqlalchemy.orm import Session

from app.core.clock import now
from app.db.tables import Tenant
from app.gateway.auth.caller import Caller
from app.gateway.auth.guard import ServicesOf
from app.gateway.auth.scopes import Scope
from app.gateway.csv_files import attach_csv
from app.gateway.dashboard import monthly_report
from app.gateway.dashboard.monthly_report import Audit, Budget, Month, Release, Requests
from app.gateway.dashboard.pages import PageRoute, render_page
from app.gateway.dashboard.sessions import ErasureReader
from app.gateway.errors import NotFound

router = APIRouter(prefix="/reports", route_class=PageRoute, include_in_schema=False)
MONTHS_LISTED = 24
_MONTH = re.compile(r"(20\d\d)-(0[1-9]|1[0-2])")
COLUMNS = ("section", "item", "value", "unit", "at", "note")


@dataclass(frozen=True)
class MonthlyReport:
    """Everything in the report. Parts that the caller's scopes do not allow are None."""

    month: Month
    tenant: str
    requests: Requests
    releases: Sequence[Release] | None
    budgets: Sequence[Budget] | None
    audits: Sequence[Audit] | None


@router.get("")
def list_months(request: Request, _: ErasureReader) -> Response:
    """List the months for which there can be a report."""
    month = Month(now().year, now().month)
    months = [month]
    while len(months) < MONTHS_LISTED:
        month = month.before()
        months.append(month)
    return render_page(request, "reports.html", months=months)


@router.get("/{name}.csv")
def download_report(name: str, caller: ErasureReader, services: ServicesOf) -> Response:
    """Download the report as CSV, one line per figure."""
    month = _parse_month(name)
    with services.database.reading() as session:
        report = _build(session, caller, month)
    return attach_csv(COLUMNS, _rows(report), f"report-{month}.csv")


@router.get("/{name}")
def show_report(request: Request, name: str, caller: ErasureReader, services: ServicesOf) -> Response:
    """Show the report of one month."""
    month = _parse_month(name)
    with services.database.reading() as session:
        report = _build(session, caller, month)
    return render_page(
        request,
        "report.html",
        report=report,
        is_over=month.end <= now(),
        printed_at=now(),
        most=monthly_report.MAX_ROWS,
    )


def _parse_month(name: str) -> Month:
    found = _MONTH.fullmatch(name)
    if found is None or (month := Month(int(found[1]), int(found[2]))).start > now():
        raise NotFound("There is no report for this month.")
    return month


def _build(session: Session, caller: Caller, month: Month) -> MonthlyReport:
    tenant_id = caller.tenant_id
    certificates = caller.may(Scope.CERTIFICATES_READ)
    audits = caller.may(Scope.AUDIT_READ)
    return MonthlyReport(
        month=month,
        tenant=session.get_one(Tenant, tenant_id).name,
        requests=monthly_report.requests_of(session, tenant_id, month, now()),
        releases=monthly_report.releases_of(session, tenant_id, month) if certificates else None,
        budgets=monthly_report.budgets_of(session, tenant_id, month) if certificates else None,
        audits=monthly_report.audits_of(session, tenant_id, month) if audits else None,
    )


def _rows(report: MonthlyReport) -> Iterator[Sequence[object]]:
    requests = report.requests
    for item, value in (
        ("received", requests.received),
        ("completed", requests.completed),
        ("completed in time", requests.in_time),
        ("completed late", requests.late_count),
        ("completed with an extended deadline", requests.extended),
        ("open and overdue", len(requests.overdue)),
    ):
        yield "requests", item, value, "requests", None, None
    for late in (*requests.late, *requests.overdue):
        state = "late" if late.completed_at else "overdue"
        yield state, str(late.id), late.days, "days", late.completed_at or late.due_at, late.because
    for release in report.releases or ():
        signed = release.predicate
        how = f"{signed.guarantee.assurance}, {release.mechanism}"
        name = f"{signed.model} version {signed.version}"
        yield "release", name, signed.guarantee.epsilon, "epsilon", signed.issued_at, how
    for budget in report.budgets or ():
        limit = None if budget.cap is None else f"of at most {budget.cap:g}"
        yield "budget", budget.model, budget.epsilon, "epsilon", None, limit
    for audit in report.audits or ():
        yield "audit", f"{audit.model} version {audit.version}", audit.verdict, "verdict", audit.at, None
