"""Nothing public depends on the erased records: compares two worlds that differ only in one person's rows.

Both register the same model and erase the same people. In one of them an erased person's labels and features
are others. Whatever someone with `certificates:read`, a webhook endpoint, the metrics page or the logs can
see is collected, ids, dates, durations, random values and digests of noised files are masked, and the rest
must agree to the last character. Digests are masked only as far as they are random: one that two runs of the
same world share and the other world lacks is a function of the erased rows, and a leak.
"""

import base64
import io
import json
import logging
import re
import secrets
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import structlog
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.core import logging as logs
from app.core.settings import Settings
from app.db.webhooks import WebhookEvent
from app.dispatcher.webhook_events import expand_notices
from app.gateway.auth.scopes import Scope
from app.gateway.main import create_app
from app.services import Services
from tests.integration.harness import MANIFEST, dataset, key_for, parquet
from tests.integration.model_api import Api, work

PERSON = "s1"
CROWD = [f"s{i}" for i in range(2, 26)]
MASKS = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"), "<id>"),
    (re.compile(r"…[0-9a-f]{8}\b"), "<end of id>"),
    (re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+(Z|\+00:00)?"), "<date>"),
    (
        re.compile(r"\d{1,2} [A-Z][a-z]+ \d{4}(, | at )?\d\d:\d\d( UTC)?|\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?"),
        "<date>",
    ),
    (re.compile(r"\b[0-9a-f]{64}\b"), "<digest>"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "<salt>"),
    (re.compile(r"-----BEGIN.*?-----END[^-]*-----", re.DOTALL), "<key>"),
    (re.compile(r'\b(ms|seconds)="?[0-9.e+-]+'), "<duration>"),
    (re.compile(r"— \S+ [A-Za-z0-9+/=]+"), "<signature>"),
    (re.compile(r"[A-Za-z0-9+/]{43}="), "<root>"),
    (re.compile(r'name="form_token" value="[^"]+"'), "<token>"),
    (re.compile(r'datetime="[^"]+"[^<]*'), "<date>"),
)


@dataclass
class World:
    services: Services
    gateway: TestClient
    api: Api
    reader: dict[str, str]


def part(*, other: bool) -> bytes:
    """The common dataset. In the other world, one person has other labels and features."""
    table = pq.read_table(io.BytesIO(dataset(rows=240, subjects=60)))
    whose = table.column("subject_id").to_pylist()
    labels = np.array(table.column("label").to_pylist())
    features = np.array(table.column("features").to_pylist())
    if other:
        mine = np.array([name == PERSON for name in whose])
        labels[mine] = (labels[mine] + 1) % 3
        features[mine] = features[mine][:, ::-1] * 1.7
    return parquet(whose, labels, features)


@pytest.fixture(scope="module")
def worlds(
    tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path, redis_url: str
) -> list[dict[str, str]]:
    """Run the same world twice, and the other one once."""
    seen = []
    for number, other in enumerate((False, False, True)):
        folder = tmp_path_factory.mktemp(f"world-{number}")
        shutil.copy(sqlite_template, folder / "lethe.db")
        settings = Settings(
            data_dir=folder / "data",
            database_url=f"sqlite:///{folder / 'lethe.db'}",
            redis_url=redis_url,
            queue_name=f"test-{secrets.token_hex(8)}",
            create_keys=True,
            log_format="json",
        )
        services = Services(settings)
        with captured_log(settings) as written, TestClient(create_app(settings)) as gateway:
            admin = key_for(services, "clinic", Scope.ADMIN)
            reader = key_for(services, "clinic", Scope.CERTIFICATES_READ)
            world = World(services, gateway, Api(gateway, admin), reader)
            run(world, part(other=other))
            seen.append(public_view(world) | {"log": written.getvalue()})
        assert '"completed"' in seen[-1]["log"]
        services.close()
    return seen


@contextmanager
def captured_log(settings: Settings) -> Iterator[io.StringIO]:
    """Capture what all loggers write, as in production. A logger keeps the stream of its first line."""
    written = io.StringIO()
    hooks, root = (sys.excepthook, threading.excepthook), logging.getLogger()
    handlers, level = root.handlers, root.level
    with redirect_stderr(written):
        logs.configure(settings)
        forget_streams()
        yield written
    structlog.reset_defaults()
    forget_streams()
    sys.excepthook, threading.excepthook = hooks
    root.handlers, root.level = handlers, level


def forget_streams() -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith(("app.", "worker.")) and hasattr(module, "log"):
            vars(module.log).pop("bind", None)


def run(world: World, content: bytes) -> None:
    """Register, erase the person with one other, then many people, while a webhook receives all events."""
    api = world.api
    endpoint = {"url": "https://hooks.example.com/lethe", "event_types": []}
    answer = world.gateway.post("/v1/webhooks", json=endpoint, headers=api.headers)
    assert answer.status_code == 201, answer.text
    policy = MANIFEST["policy"] | {"max_kl_alert": 1.0}
    api.create(policy=policy)
    api.put("dataset/part0", content)
    api.put("holdout/h0", dataset(rows=60, subjects=400, seed=8))
    api.call("POST", "/toy/validate", 202)
    work(world.services)
    api.erase(PERSON, "s50")
    work(world.services)
    api.erase(*CROWD)
    work(world.services)
    expand_notices(world.services)


def public_view(world: World) -> dict[str, str]:
    """Collect everything that is public or visible to a key with `certificates:read`, masked."""
    shown: dict[str, str] = {}
    digests: set[str] = set()
    found = world.gateway.get("/v1/certificates", headers=world.reader).json()["items"]
    assert len(found) == 2
    paths = ["/v1/certificates", "/v1/keys", "/v1/log/checkpoint", "/v1/log/inclusion?index=0"]
    paths += ["/v1/log/consistency?old_size=1", "/v1/models", "/v1/batches", "/v1/erasures", "/v1/models/toy"]
    for certificate in found:
        paths += [
            f"/v1/certificates/{certificate['id']}{end}"
            for end in ("", "/pack", "/bundle", "/verify", "/evidence")
        ]
    world.gateway.cookies.clear()
    sign_in(world)
    pages = ["/", "/certificates", *(f"/certificates/{certificate['id']}" for certificate in found)]
    for number, path in enumerate([*paths, *pages]):
        answer = world.gateway.get(path, headers=world.reader if path.startswith("/v1") else {})
        text = opened(answer.text)
        shown[f"{number} {mask(path)}"] = f"{answer.status_code} {mask(text)}"
        digests.update(re.findall(r"[0-9a-f]{32,}|[A-Za-z0-9+/]{43}=", text))
    metrics = world.gateway.get("/metrics").text
    shown["metrics"] = "\n".join(line for line in metrics.splitlines() if not timed(line))
    with world.services.database.reading() as session:
        events = session.scalars(select(WebhookEvent)).all()
        # Events of the same time have no particular order.
        shown["webhooks"] = "\n".join(sorted(mask(json.dumps([event.type, event.data])) for event in events))
    assert events
    shown["digests"] = " ".join(sorted(digests))
    return shown


def sign_in(world: World) -> None:
    page = world.gateway.get("/login").text
    token = re.search(r'name="form_token" value="([^"]+)"', page)
    assert token
    form = {"key": world.reader["Authorization"].removeprefix("Bearer "), "form_token": token[1]}
    answer = world.gateway.post("/login", data=form, follow_redirects=False)
    assert answer.status_code == 303, answer.text


def opened(text: str) -> str:
    """Decode base64 payloads within JSON, so that signed content is compared too."""
    try:
        document = json.loads(text)
    except ValueError:
        return text
    return json.dumps(_opened(document), sort_keys=True, ensure_ascii=False)


def _opened(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: "<signature>" if key in ("sig", "signature") else _opened(entry)
            for key, entry in value.items()
        }
    if isinstance(value, list):
        return [_opened(entry) for entry in value]
    if isinstance(value, str) and len(value) > 200:
        try:
            return _opened(json.loads(base64.b64decode(value, validate=True)))
        except ValueError:
            return value
    return value


def mask(text: str) -> str:
    for pattern, word in MASKS:
        text = pattern.sub(word, text)
    return text


def timed(line: str) -> bool:
    return "seconds" in line or "process_" in line or "python_" in line or "_created" in line


def log_lines(text: str) -> list[str]:
    """Return the log lines without times and durations."""
    lines = []
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            entry = {"text": re.sub(r"\d{4}-\d\d-\d\d [0-9:]+", "", line)}
        entry = {key: value for key, value in entry.items() if key not in ("timestamp", "ms", "seconds")}
        lines.append(mask(json.dumps(entry, sort_keys=True)))
    return lines


def test_what_is_public_does_not_depend_on_what_the_erased_records_held(worlds: list[dict[str, str]]) -> None:
    one, _, other = worlds
    assert one.keys() == other.keys()
    for place in one:
        if place not in ("log", "digests"):
            assert one[place] == other[place], place
    assert log_lines(one["log"]) == log_lines(other["log"])


def test_no_public_digest_is_a_function_of_the_erased_records(worlds: list[dict[str, str]]) -> None:
    one, again, other = (set(world["digests"].split()) for world in worlds)
    assert one
    assert (one & again) <= other
