"""Fixtures: a receiver, an endpoint registered for it, and a courier with its own clock."""

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from app.core.settings import Settings
from app.gateway.auth.scopes import Scope
from app.services import Services
from tests.integration.harness import key_for
from tests.integration.job_world import World
from tests.integration.webhooks.world import Hook, Post, register
from tests.webhook_receiver import Receiver, receiver


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"webhook_intranet": True})


@pytest.fixture
def there() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


@pytest.fixture
def world(services: Services) -> World:
    return World(services)


@pytest.fixture
def owner(services: Services, world: World) -> dict[str, str]:
    return key_for(services, "tenant", Scope.WEBHOOKS_ADMIN)


@pytest.fixture
def hook(gateway: TestClient, owner: dict[str, str], there: Receiver) -> Hook:
    return register(gateway, owner, there.url)


@pytest.fixture
def post(services: Services) -> Iterator[Post]:
    made = Post(services)
    yield made
    made.courier.close()
