"""A dashboard user without a browser, who signs in, opens pages and sends forms."""

import re
from typing import Any

import httpx2 as httpx
from fastapi.testclient import TestClient

from app.gateway.auth import service as access
from app.gateway.auth.scopes import Scope
from app.services import Services

TOKEN = re.compile(r'name="form_token" value="([0-9a-f]{64})"')


class Visitor:
    def __init__(self, gateway: TestClient, services: Services, tenant: str, *scopes: Scope) -> None:
        with services.database.writing() as session:
            made = access.create_key(session, tenant=tenant, name="test", scopes=scopes or (Scope.ADMIN,))
        self.key, self.key_id, self.tenant_id = made.secret, made.record.id, made.record.tenant_id
        self.headers = {"Authorization": f"Bearer {self.key}"}
        # Each visitor has its own client, and so its own cookies, on the same gateway.
        self.client = httpx.Client(
            transport=gateway._transport, base_url=str(gateway.base_url), follow_redirects=False
        )

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.client.get(path, **more)

    def send(self, path: str, form: dict[str, str]) -> httpx.Response:
        return self.client.post(path, data=form)

    def token(self, path: str = "/login") -> str:
        found = TOKEN.search(self.get(path).text)
        assert found is not None, path
        return found.group(1)

    def sign_in(self, key: str | None = None, **more: str) -> httpx.Response:
        return self.send("/login", {"key": key or self.key, "form_token": self.token(), **more})

    def signed_in(self) -> "Visitor":
        assert self.sign_in().status_code == 303
        return self
