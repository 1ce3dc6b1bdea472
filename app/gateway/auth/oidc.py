"""Sign-in of people through an OpenID Connect provider: authorization code flow with PKCE.

The flow follows OpenID Connect Core 1.0 (3.1), RFC 7636 (PKCE) and RFC 9207 (the `iss` parameter). Nothing of
the provider's tokens is kept: the ID token is checked, its groups are mapped to a tenant and scopes, and the
tokens are dropped.
"""

import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx
import jwt
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from app.core import logging
from app.core.settings import Settings, SettingsError
from app.core.vault import Vault
from app.gateway.auth.scopes import Scope

log = logging.get_logger("sign-in")
CALLBACK = "/login/callback"
# Signatures with a public key only. With `none` or a shared secret, anyone could write a token.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
CLOCK_SKEW_SECONDS = 60
TIMEOUT_SECONDS = 10.0
MAX_ANSWER_BYTES = 1 << 20
METADATA_SECONDS = 3600.0
KEY_REFRESH_SECONDS = 60.0  # a token with an unknown key makes us fetch the keys again, at most this often
STATE_SECONDS = 600
_STATE_ROW = "oidc sign-in"


class SignInRefused(Exception):
    """The sign-in failed. The message may be shown to the person and reveals nothing about the account."""


class ProviderUnavailable(Exception):
    """The identity provider could not be reached or answered nonsense."""


class GroupGrant(BaseModel):
    """What members of a group may do: in which tenant, with which scopes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tenant: str
    scopes: tuple[Scope, ...]


@dataclass(frozen=True)
class Grant:
    """What a person may do: the tenant of their first group, and the scopes of all groups of that tenant."""

    tenant: str
    scopes: frozenset[str]


@dataclass(frozen=True)
class PendingSignIn:
    """What a browser keeps while its user is at the provider. It is encrypted in a cookie."""

    state: str
    nonce: str
    verifier: str
    next_path: str
    ends_at: int


@dataclass(frozen=True)
class Person:
    """Someone whom the provider has identified."""

    subject: str
    name: str
    groups: tuple[str, ...]
    """Only the groups that the settings mention."""


def read_groups(text: str) -> dict[str, GroupGrant]:
    """Parse the setting `oidc_groups`. Raise `SettingsError` if it is malformed."""
    try:
        return TypeAdapter(dict[str, GroupGrant]).validate_json(text or "{}")
    except ValidationError:
        raise SettingsError(
            'LETHE_OIDC_GROUPS: must be a JSON object such as {"group": {"tenant": "default", '
            '"scopes": ["erasures:read"]}}'
        ) from None


def grant_for(groups: Mapping[str, GroupGrant], memberships: tuple[str, ...]) -> Grant | None:
    """Return what the members of these groups may do, or None if no group is mapped.

    >>> mapping = {"dpo": GroupGrant(tenant="a", scopes=("erasures:read",)),
    ...            "ops": GroupGrant(tenant="b", scopes=("admin",))}
    >>> grant_for(mapping, ("ops", "dpo")).tenant, grant_for(mapping, ("other",))
    ('a', None)
    """
    granted = [grant for name, grant in groups.items() if name in memberships]
    if not granted:
        return None
    tenant = granted[0].tenant
    scopes = {str(scope) for grant in granted if grant.tenant == tenant for scope in grant.scopes}
    return Grant(tenant, frozenset(scopes))


class IdentityProvider:
    """The provider that the settings name. Safe to use from several threads."""

    def __init__(
        self,
        settings: Settings,
        *,
        transport: httpx.BaseTransport | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Check the settings. Raise `SettingsError` if they do not fit together. Nothing is fetched yet."""
        self._settings, self._clock = settings, clock
        self.groups = read_groups(settings.oidc_groups)
        self._check_settings()
        self._http = httpx.Client(transport=transport, timeout=TIMEOUT_SECONDS, follow_redirects=False)
        self._lock = threading.Lock()
        self._metadata: tuple[float, dict[str, Any]] | None = None
        self._keys: tuple[float, jwt.PyJWKSet] | None = None

    @property
    def redirect_uri(self) -> str:
        """The address that the provider sends browsers back to."""
        return self._settings.public_url.rstrip("/") + CALLBACK

    def _check_settings(self) -> None:
        settings = self._settings
        for name, value in (("CLIENT_ID", settings.oidc_client_id), ("GROUPS", settings.oidc_groups)):
            if not value:
                raise SettingsError(f"LETHE_OIDC_{name}: must be set together with LETHE_OIDC_ISSUER")
        for name, url in (("OIDC_ISSUER", settings.oidc_issuer), ("PUBLIC_URL", settings.public_url)):
            if not _is_trustworthy(url):
                raise SettingsError(f"LETHE_{name}: must be an https URL, or http on this machine")

    # The flow

    def begin(self, next_path: str) -> tuple[str, PendingSignIn]:
        """Return the provider's address to send the browser to, and what the browser keeps meanwhile."""
        pending = PendingSignIn(
            state=secrets.token_urlsafe(24),
            nonce=secrets.token_urlsafe(24),
            verifier=secrets.token_urlsafe(48),
            next_path=next_path,
            ends_at=int(self._clock()) + STATE_SECONDS,
        )
        query = {
            "response_type": "code",
            "client_id": self._settings.oidc_client_id,
            "redirect_uri": self.redirect_uri,
            "scope": self._settings.oidc_scope,
            "state": pending.state,
            "nonce": pending.nonce,
            "code_challenge": code_challenge(pending.verifier),
            "code_challenge_method": "S256",
        }
        endpoint = self._endpoint("authorization_endpoint")
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}", pending

    def finish(self, pending: PendingSignIn | None, answer: Mapping[str, str]) -> Person:
        """Return the person whom the provider identified. `answer` is the query of its redirect.

        Raises `SignInRefused` or `ProviderUnavailable`.
        """
        if pending is None or pending.ends_at <= self._clock():
            raise SignInRefused("This sign-in was started in another browser or has expired. Start again.")
        if not hmac.compare_digest(answer.get("state", "").encode(), pending.state.encode()):
            raise SignInRefused("The answer does not belong to this sign-in. Start again.")
        if answer.get("iss", self._settings.oidc_issuer) != self._settings.oidc_issuer:
            raise SignInRefused("The answer comes from another identity provider. Start again.")
        if "error" in answer or not answer.get("code"):
            raise SignInRefused("The identity provider did not sign you in. Start again.")
        tokens = self._redeem(answer["code"], pending.verifier)
        claims = self._checked_claims(str(tokens.get("id_token", "")), pending.nonce)
        claims = self._with_groups(claims, str(tokens.get("access_token", "")))
        return self._person(claims)

    def _redeem(self, code: str, verifier: str) -> dict[str, Any]:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.redirect_uri,
            "code_verifier": verifier,
            "client_id": self._settings.oidc_client_id,
        }
        secret, auth = self._settings.oidc_client_secret.get_secret_value(), None
        methods = self._metadata_now().get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        if secret and "client_secret_basic" in methods:
            auth = httpx.BasicAuth(self._settings.oidc_client_id, secret)
        elif secret:
            form["client_secret"] = secret
        request = self._http.build_request("POST", self._endpoint("token_endpoint"), data=form)
        status, tokens = self._exchange(request, auth)
        if status != 200:
            raise SignInRefused("The identity provider did not accept the sign-in. Start again.")
        return tokens

    def _checked_claims(self, token: str, nonce: str) -> dict[str, Any]:
        """Check the ID token (OpenID Connect Core 1.0, 3.1.3.7) and return its claims."""
        client_id = self._settings.oidc_client_id
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in ALGORITHMS:
                raise jwt.InvalidAlgorithmError("not an algorithm with a public key")
            # Times are compared below, with the clock that tests can set.
            claims: dict[str, Any] = jwt.decode(
                token,
                self._key(header.get("kid")),
                algorithms=list(ALGORITHMS),
                audience=client_id,
                issuer=self._settings.oidc_issuer,
                options={
                    "require": ["exp", "iat", "iss", "aud", "sub"],
                    "verify_exp": False,
                    "verify_iat": False,
                    "verify_nbf": False,
                },
            )
            _check_times(claims, self._clock())
        except (jwt.PyJWTError, ValueError, TypeError) as problem:
            log.warning("an ID token was refused", problem=type(problem).__name__)
            raise SignInRefused("The identity provider's answer is not valid. Start again.") from None
        authorized = claims.get("azp", client_id)
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if authorized != client_id or (several and "azp" not in claims):
            raise SignInRefused("The identity provider's answer is for another program. Start again.")
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise SignInRefused(
                "The identity provider's answer does not belong to this sign-in. Start again."
            )
        return claims

    def _with_groups(self, claims: dict[str, Any], access_token: str) -> dict[str, Any]:
        """Add the claims of the userinfo endpoint if the ID token has no groups."""
        endpoint = self._metadata_now().get("userinfo_endpoint")
        if self._settings.oidc_groups_claim in claims or not endpoint or not access_token:
            return claims
        headers = {"Authorization": f"Bearer {access_token}"}
        request = self._http.build_request("GET", self._endpoint("userinfo_endpoint"), headers=headers)
        status, more = self._exchange(request)
        if status != 200 or more.get("sub") != claims["sub"]:
            raise SignInRefused("The identity provider did not say which groups you are in. Start again.")
        return more | claims

    def _person(self, claims: Mapping[str, Any]) -> Person:
        listed = claims.get(self._settings.oidc_groups_claim, [])
        names = [listed] if isinstance(listed, str) else listed if isinstance(listed, list) else []
        claim = self._settings.oidc_name_claim
        shown = claims.get(claim, "") if claim else ""
        return Person(
            subject=f"{self._settings.oidc_issuer}\0{claims['sub']}",
            name="".join(c for c in str(shown)[:100] if c.isprintable()),
            groups=tuple(name for name in self.groups if name in names),
        )

    # What the provider publishes

    def sign_out_url(self) -> str | None:
        """Return the provider's page for signing out, if it has one and is known already."""
        with self._lock:
            known = self._metadata[1] if self._metadata else {}
        endpoint = str(known.get("end_session_endpoint", ""))
        if not _is_trustworthy(endpoint):
            return None
        return f"{endpoint}?{urlencode({'client_id': self._settings.oidc_client_id})}"

    def _metadata_now(self) -> dict[str, Any]:
        with self._lock:
            if self._metadata is None or self._metadata[0] <= self._clock():
                issuer = self._settings.oidc_issuer
                document = self._fetch(issuer.rstrip("/") + "/.well-known/openid-configuration")
                if document.get("issuer") != issuer:
                    log.error("the provider's metadata names another issuer; check LETHE_OIDC_ISSUER")
                    raise ProviderUnavailable
                self._metadata = (self._clock() + METADATA_SECONDS, document)
            return self._metadata[1]

    def _endpoint(self, name: str) -> str:
        url = str(self._metadata_now().get(name, ""))
        if not _is_trustworthy(url):
            log.error("the provider's metadata has no usable address", endpoint=name)
            raise ProviderUnavailable
        return url

    def _key(self, key_id: str | None) -> jwt.PyJWK:
        """Return the provider's key with this id. An unknown id may be a new key: fetch the keys again."""
        url = self._endpoint("jwks_uri")
        with self._lock:
            if self._keys is None:
                self._keys = (self._clock(), _key_set(self._fetch(url)))
            key = _choose(self._keys[1], key_id)
            if key is None and self._clock() - self._keys[0] >= KEY_REFRESH_SECONDS:
                self._keys = (self._clock(), _key_set(self._fetch(url)))
                key = _choose(self._keys[1], key_id)
        if key is None:
            raise jwt.InvalidKeyError("unknown key")
        return key

    def _fetch(self, url: str) -> dict[str, Any]:
        status, document = self._exchange(self._http.build_request("GET", url))
        if status != 200:
            raise ProviderUnavailable
        return document

    def _exchange(self, request: httpx.Request, auth: httpx.Auth | None = None) -> tuple[int, dict[str, Any]]:
        """Send a request and return the status and the JSON object of the answer, of limited size."""
        try:
            response = self._http.send(request, stream=True, auth=auth)
            try:
                body = b""
                for chunk in response.iter_bytes():
                    body += chunk
                    if len(body) > MAX_ANSWER_BYTES:
                        raise ProviderUnavailable
            finally:
                response.close()
            document = json.loads(body)
        except (httpx.HTTPError, ValueError, RecursionError) as problem:
            log.warning("the identity provider cannot be used", problem=type(problem).__name__)
            raise ProviderUnavailable from None
        if not isinstance(document, dict):
            raise ProviderUnavailable
        return response.status_code, document


def seal_pending(vault: Vault, pending: PendingSignIn) -> str:
    """Encrypt what a browser keeps, so that its user cannot read or change it."""
    text = json.dumps(pending.__dict__, sort_keys=True)
    return base64.urlsafe_b64encode(vault.encrypt(text, row=_STATE_ROW)).decode()


def open_pending(vault: Vault, sealed: str) -> PendingSignIn | None:
    """Return what a browser kept, or None if it is missing or was not written by this deployment."""
    try:
        text = vault.decrypt(base64.urlsafe_b64decode(sealed.encode()), row=_STATE_ROW)
        return PendingSignIn(**json.loads(text))
    except (ValueError, TypeError):
        return None


def pseudonym(vault: Vault, subject: str) -> str:
    """Return the keyed pseudonym of a person, which is the same at every sign-in."""
    return "p-" + vault.keyed_hash(subject, purpose="person who signs in").hex()[:32]


def code_challenge(verifier: str) -> str:
    """Return the PKCE challenge of a verifier (RFC 7636, 4.2; the example is from its appendix B).

    >>> code_challenge("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk")
    'E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM'
    """
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _check_times(claims: Mapping[str, Any], moment: float) -> None:
    expires, issued, not_before = (float(claims.get(name, 0)) for name in ("exp", "iat", "nbf"))
    if moment > expires + CLOCK_SKEW_SECONDS:
        raise jwt.ExpiredSignatureError
    if max(issued, not_before) > moment + CLOCK_SKEW_SECONDS:
        raise jwt.ImmatureSignatureError


def _key_set(document: dict[str, Any]) -> jwt.PyJWKSet:
    try:
        return jwt.PyJWKSet.from_dict(document)
    except (jwt.PyJWTError, AttributeError, TypeError):
        raise ProviderUnavailable from None


def _choose(keys: jwt.PyJWKSet, key_id: str | None) -> jwt.PyJWK | None:
    usable = [key for key in keys.keys if key.public_key_use in (None, "sig") and key.key_type != "oct"]
    if key_id is None:
        return usable[0] if len(usable) == 1 else None
    return next((key for key in usable if key.key_id == key_id), None)


def _is_trustworthy(url: str) -> bool:
    """Return whether a URL is https, or http on this machine."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    return bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and local))
