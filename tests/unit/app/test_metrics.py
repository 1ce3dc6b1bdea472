"""Alerts and panels use metrics that exist, in expressions that Prometheus accepts. Stage durations."""

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from app.core.clock import new_id
from app.core.settings import Settings, SettingsError
from app.db import schema
from app.gateway.metrics.catalogue import Metric
from app.gateway.metrics.durations import Event, stage_durations
from app.gateway.metrics.exposition import MetricsPage
from app.gateway.middleware import Metrics
from app.services import Services

ROOT = Path(__file__).parents[3]
ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/lethe.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = sorted({rule["expr"] for rule in ALERTS} | {t["expr"] for p in PANELS for t in p["targets"]})
SELECTOR = re.compile(r"\b(lethe_\w+|up)\b(?:\{([^}]*)\})?")
MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
PROMETHEUS_SERIES = {"up": {"job", "instance"}}
SCRAPE_LABELS = {"job", "instance", "pod"}
TOKEN = "a token long enough"


def selectors(expression: str) -> dict[str, set[str]]:
    """Return the series an expression selects, each with the labels it matches. promtool checks the rest."""
    found: dict[str, set[str]] = {}
    for name, matchers in SELECTOR.findall(expression):
        found.setdefault(name, set()).update(MATCHER.findall(matchers))
    return found


@pytest.fixture(scope="module")
def exposition(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a new deployment, with one HTTP request counted."""
    folder = tmp_path_factory.mktemp("metrics")
    (folder / "token").write_text(TOKEN)
    services = Services(Settings(data_dir=folder, metrics_token_file=folder / "token"))
    schema.upgrade(services.database)
    requests = Metrics()
    requests.requests.labels("GET", "/", 200).inc()
    requests.seconds.labels("GET", "/").observe(0.1)
    text = MetricsPage(services, requests).render(f"Bearer {TOKEN}").decode()
    services.close()
    return text


@pytest.fixture(scope="module")
def series(exposition: str) -> dict[str, set[str]]:
    """Every series of the page with the labels of its samples. A family without samples has no labels."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(exposition):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found.setdefault(name, set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.fixture(scope="module")
def promtool() -> str:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("NOT TESTED: promtool is not on the PATH (Debian: apt-get install prometheus)")
    return tool


def check_expressions(
    promtool: str, folder: Path, expressions: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    """Let Prometheus parse the expressions, each as a recording rule of a temporary file."""
    rules = [{"record": f"checked:{number}", "expr": text} for number, text in enumerate(expressions)]
    file = folder / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "checked", "rules": rules}]}))
    return subprocess.run(
        [promtool, "check", "rules", str(file)], capture_output=True, text=True, check=False
    )


def test_prometheus_accepts_every_expression(promtool: str, tmp_path: Path) -> None:
    done = check_expressions(promtool, tmp_path, EXPRESSIONS)
    assert done.returncode == 0, done.stderr


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
def test_prometheus_refuses_a_broken_expression(promtool: str, tmp_path: Path, broken: str) -> None:
    assert check_expressions(promtool, tmp_path, [broken]).returncode != 0


@pytest.mark.parametrize(
    "command",
    [
        ["check", "rules", "alerts.yml"],
        ["test", "rules", "alerts.test.yml"],
    ],
    ids=" ".join,
)
def test_prometheus_accepts_our_files(promtool: str, command: list[str]) -> None:
    subprocess.run([promtool, *command], cwd=ROOT / "deploy/prometheus", check=True)


def test_prometheus_finds_no_fault_with_the_page(promtool: str, exposition: str) -> None:
    done = subprocess.run(
        [promtool, "check", "metrics"], input=exposition, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_expression_selects_series_that_exist(expression: str, series: dict[str, set[str]]) -> None:
    known = series | PROMETHEUS_SERIES
    assert selectors(expression)
    for metric, labels in selectors(expression).items():
        # There is no Redis here. An integration test covers its metric.
        assert metric in known or metric == Metric.QUEUE_MESSAGES.metric_name, metric
        if known.get(metric):
            assert labels <= known[metric] | SCRAPE_LABELS, metric


def test_every_metric_is_in_the_catalogue_with_its_labels(exposition: str) -> None:
    declared = {metric.metric_name: set(metric.labels) for metric in Metric}
    exposed = {family.name: family for family in text_string_to_metric_families(exposition)}
    without_redis = {Metric.QUEUE_MESSAGES.metric_name}
    creation_times = {name for name in exposed if name.endswith("_created")}
    assert exposed.keys() - creation_times == declared.keys() - without_redis
    for name, labels in declared.items():
        for sample in exposed[name].samples if name in exposed else []:
            assert set(sample.labels) - {"le"} == labels, name


def test_every_metric_is_described_and_used(series: dict[str, set[str]]) -> None:
    used = {metric for text in EXPRESSIONS for metric in selectors(text)}
    names = {name for name in series if not re.search(r"_(created|bucket|sum|count)$", name)}
    described = (ROOT / "docs/operating.md").read_text()
    for name in sorted(names):
        assert f"`{name}`" in described or f"`{name}{{" in described, (
            f"docs/operating.md does not name {name}"
        )
    helpers = {"lethe_http_request_seconds", "lethe_recent_batches", "lethe_models", "lethe_models_not_shown"}
    assert names - used <= helpers


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


def test_the_panels_are_well_formed() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in PANELS:
        assert panel["title"]
        assert panel["targets"]
        grid = panel["gridPos"]
        assert grid["x"] + grid["w"] <= 24


def test_stages_cut_off_by_a_failed_attempt_are_not_counted() -> None:
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
    assert list(stage_durations(events)) == [
        ("wait", 3),
        ("resolve", 2),
        ("resolve", 1),
        ("solve", 10),
        ("certify", 0),
        ("release", 2),
        ("purge", 4),
        ("total", 70),
    ]


@pytest.mark.parametrize(("content", "message"), [(None, "No such file"), (b"short\n", "shorter than")])
def test_a_token_that_cannot_be_used_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    services = Services(Settings(data_dir=tmp_path, metrics_token_file=file))
    with pytest.raises(SettingsError, match=f"LETHE_METRICS_TOKEN_FILE: {message}"):
        MetricsPage(services, Metrics())
