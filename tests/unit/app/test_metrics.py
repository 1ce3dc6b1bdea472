"""Dashboard and alerts ask only for what `/metrics` has, in expressions that parse; stage times add up."""

import json
import re
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from app import migrate
from app.bootstrap import Services
from app.clock import new_id
from app.metrics.durations import Event, lengths
from app.metrics.page import Page
from app.middleware import Metrics
from app.settings import Settings, SettingsError
from tests import promql

ROOT = Path(__file__).parents[3]
ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/lethe.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = sorted({rule["expr"] for rule in ALERTS} | {t["expr"] for p in PANELS for t in p["targets"]})
OF_PROMETHEUS = {"up": {"job", "instance"}}
OF_SCRAPING = {"job", "instance", "pod"}


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Every metric the page has, samples or not, with the labels of its samples."""
    folder = tmp_path_factory.mktemp("metrics")
    (folder / "token").write_text("a token long enough")
    services = Services(Settings(data_dir=folder, metrics_token_file=folder / "token"))
    migrate.upgrade(services)
    requests = Metrics()
    requests.requests.labels("GET", "/", 200).inc()
    requests.seconds.labels("GET", "/").observe(0.1)
    text = Page(services, requests).render("Bearer a token long enough").decode()
    services.close()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found.setdefault(name, set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_expression_parses_and_asks_for_what_there_is(
    expression: str, series: dict[str, set[str]]
) -> None:
    known = series | OF_PROMETHEUS
    for metric, labels in promql.parse(expression).metrics.items():
        # Redis is away here; its figure is checked by the integration test.
        assert metric in known or metric == "lethe_queue_messages", metric
        if known.get(metric):
            assert labels <= known[metric] | OF_SCRAPING, metric


@pytest.mark.parametrize(
    "broken",
    [
        "max(lethe_jobs",
        "rate(lethe_jobs)",
        "lethe_jobs{state=1}",
        "lethe_jobs >",
        "sum by model (x)",
        "x y",
        "5q",
    ],
)
def test_a_broken_expression_is_noticed(broken: str) -> None:
    with pytest.raises(promql.NotPromQl):
        promql.parse(broken)


def test_every_figure_is_on_the_dashboard_or_watched(series: dict[str, set[str]]) -> None:
    asked = {metric for text in EXPRESSIONS for metric in promql.parse(text).metrics}
    told = {name for name in series if not re.search(r"_(created|bucket|sum|count)$", name)}
    described = (ROOT / "docs/operating.md").read_text()
    for name in sorted(told):
        assert f"`{name}`" in described or f"`{name}{{" in described, (
            f"docs/operating.md says nothing of {name}"
        )
    helpers = {"lethe_http_request_seconds", "lethe_recent_batches", "lethe_models", "lethe_models_not_shown"}
    assert told - asked <= helpers


def test_every_alert_has_a_runbook_line() -> None:
    text = (ROOT / "docs/operating.md").read_text()
    headings = {line.strip("# ").lower() for line in text.splitlines() if line.startswith("#")}
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS)
    for rule in ALERTS:
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert page == "docs/operating.md"
        assert anchor == rule["alert"].lower()
        assert anchor in headings, rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_prometheus_agrees() -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip(
            "promtool is not installed (Debian: prometheus); the rules were read by our own parser only"
        )
    for words in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts.test.yml"]):
        subprocess.run([tool, *words], cwd=ROOT / "deploy/prometheus", check=True)


def test_the_panels_are_well_formed() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in PANELS:
        assert panel["title"]
        assert panel["targets"]
        grid = panel["gridPos"]
        assert grid["x"] + grid["w"] <= 24


def test_the_stages_of_a_batch_and_an_attempt_that_died() -> None:
    start, batch = datetime(2027, 1, 1, tzinfo=UTC), new_id()
    story: list[tuple[float, str, dict[str, str]]] = [
        (0, "sealed", {}),
        (1, "state", {"state": "queued"}),
        (3, "state", {"state": "running"}),
        (4, "step", {"step": "resolve"}),
        (6, "step", {"step": "solve"}),
        (50, "state", {"state": "sealed"}),  # it died in the solve
        (51, "state", {"state": "queued"}),
        (52, "state", {"state": "running"}),
        (53, "step", {"step": "resolve"}),
        (54, "step", {"step": "solve"}),
        (64, "step", {"step": "certify"}),
        (64, "step", {"step": "release"}),
        (66, "published", {}),
        (66, "step", {"step": "purge"}),
        (70, "completed", {}),
    ]
    events = [Event(batch, start + timedelta(seconds=at), kind, data) for at, kind, data in story]
    assert list(lengths(events)) == [
        ("wait", 3),
        ("resolve", 2),
        ("resolve", 1),
        ("solve", 10),
        ("certify", 0),
        ("release", 2),
        ("purge", 4),
        ("total", 70),
    ]


@pytest.mark.parametrize(("content", "said"), [(None, "No such file"), (b"short\n", "shorter than")])
def test_a_token_that_cannot_be_used_is_named(tmp_path: Path, content: bytes | None, said: str) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    services = Services(Settings(data_dir=tmp_path, metrics_token_file=file))
    with pytest.raises(SettingsError, match=f"LETHE_METRICS_TOKEN_FILE: {said}"):
        Page(services, Metrics())
