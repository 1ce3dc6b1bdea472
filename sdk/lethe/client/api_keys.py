"""The endpoints for API keys."""

from collections.abc import Sequence

from lethe.client.endpoints import EndpointGroup, Id, path
from lethe.client.operations import D, Procedure, Request, operation
from lethe.client.responses import ApiKey, Identity, NewApiKey


class ApiKeys(EndpointGroup[D]):
    """The API keys of your own tenant."""

    @operation
    def create(self, name: str, scopes: Sequence[str]) -> Procedure[NewApiKey]:
        """Create a key. Store the secret of the response: it cannot be fetched again."""
        return self._post("/v1/api-keys", NewApiKey, {"name": name, "scopes": [*scopes]})

    @operation
    def whoami(self) -> Procedure[Identity]:
        """Return the tenant and the scopes of the key that this client uses. Every valid key may ask."""
        return self._get("/v1/whoami", Identity)

    @operation
    def list(self) -> Procedure[tuple[ApiKey, ...]]:
        """Return all keys, without their secrets."""
        return self._get("/v1/api-keys", tuple[ApiKey, ...])

    @operation
    def revoke(self, key_id: Id) -> Procedure[ApiKey]:
        """Revoke a key. It stops working immediately."""
        return self._request(Request("DELETE", path("api-keys", key_id)), ApiKey)
