"""Evaluations and audits: asked for, waited for, read. And API keys."""

from collections.abc import Sequence

from client.answers import Key, NewKey
from client.flow import D, Flow, Items, Request, listing, operation
from client.report_answers import Audit, Evaluation
from client.resource import Id, Noun, at, until


class Evaluations(Noun[D]):
    @operation
    def start(self, model: str) -> Flow[Evaluation]:
        """Score the current version on the holdout, beside retraining."""
        return self._post(_evaluations(model), Evaluation)

    @operation
    def get(self, model: str, evaluation_id: Id) -> Flow[Evaluation]:
        return self._get(f"{_evaluations(model)}/{evaluation_id}", Evaluation)

    @listing
    def list(self, model: str, *, most: int | None = None) -> Items[Evaluation]:
        """Newest first."""
        return self._pages(_evaluations(model), Evaluation, most)

    @operation
    def wait(self, model: str, evaluation_id: Id, *, timeout: float | None = None) -> Flow[Evaluation]:
        """The evaluation once it has ended, well or not."""
        where = f"{_evaluations(model)}/{evaluation_id}"
        return until(lambda: self._get(where, Evaluation), lambda found: found.ended, timeout=timeout)


class Audits(Noun[D]):
    @operation
    def start(self, certificate_id: Id) -> Flow[Audit]:
        """Replay the release, and test whether the noise is as certified; for the current version."""
        return self._post(_audits(certificate_id), Audit)

    @operation
    def get(self, certificate_id: Id, audit_id: Id) -> Flow[Audit]:
        return self._get(f"{_audits(certificate_id)}/{audit_id}", Audit)

    @listing
    def list(self, certificate_id: Id, *, most: int | None = None) -> Items[Audit]:
        """Newest first."""
        return self._pages(_audits(certificate_id), Audit, most)

    @operation
    def wait(self, certificate_id: Id, audit_id: Id, *, timeout: float | None = None) -> Flow[Audit]:
        """The audit once it has ended, well or not."""
        where = f"{_audits(certificate_id)}/{audit_id}"
        return until(lambda: self._get(where, Audit), lambda found: found.ended, timeout=timeout)


class Keys(Noun[D]):
    """API keys of one's own tenant."""

    @operation
    def create(self, name: str, scopes: Sequence[str]) -> Flow[NewKey]:
        """The secret is in the answer, once."""
        return self._post("/v1/api-keys", NewKey, {"name": name, "scopes": [*scopes]})

    @operation
    def list(self) -> Flow[tuple[Key, ...]]:
        return self._get("/v1/api-keys", tuple[Key, ...])

    @operation
    def revoke(self, key_id: Id) -> Flow[Key]:
        return self._take(Request("DELETE", at("api-keys", key_id)), Key)


def _evaluations(model: str) -> str:
    return at("models", model, "evaluations")


def _audits(certificate_id: Id) -> str:
    return at("certificates", certificate_id, "audits")
