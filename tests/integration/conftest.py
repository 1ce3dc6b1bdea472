"""A gateway in the process, and the rest of the system on demand."""

import secrets
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from app.core.settings import Settings
from app.gateway.auth.scopes import Scope
from app.gateway.main import create_app
from app.services import Services
from tests.integration.harness import System, environment, key_for


@pytest.fixture
def gateway(settings: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(settings), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def admin(services: Services) -> dict[str, str]:
    return key_for(services, f"tenant-{secrets.token_hex(4)}", Scope.ADMIN)


@pytest.fixture
def system(services: Services, monkeypatch: pytest.MonkeyPatch) -> System:
    for name, value in environment(services.settings).items():
        monkeypatch.setenv(name, value)
    return System(services)
