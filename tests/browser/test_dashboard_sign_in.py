"""A person who signs in through an identity provider decides on a batch, in a real browser."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests import reserved_port
from tests.browser.accessibility import problems
from tests.browser.conftest import start_site
from tests.browser.site import Site
from tests.identity_provider import run_provider

pytestmark = pytest.mark.slow
SCOPES = ["erasures:read", "models:read", "models:admin", "audit:read"]
PEOPLE = [{"sub": "ada", "groups": ["dpo"], "name": "Ada Lovelace"}]


@pytest.fixture
def site(tmp_path: Path, sqlite_template: Path, redis_url: str) -> Iterator[Site]:
    """Start a site whose people sign in through a provider. The site and the provider have two names."""
    with run_provider(PEOPLE) as issuer, reserved_port() as port:
        running = start_site(
            tmp_path,
            sqlite_template,
            redis_url,
            port,
            oidc_issuer=issuer,
            oidc_client_id="lethe",
            oidc_client_secret="client secret",
            oidc_groups=json.dumps({"dpo": {"tenant": "clinic", "scopes": SCOPES}}),
            oidc_name_claim="name",
            public_url=f"http://127.0.0.1:{port}",
        )
        yield running
        running.close()


def test_a_person_of_the_provider_approves_a_batch_on_hold(page: Page, site: Site) -> None:
    erasure, batch = site.hold("scans", "s1", "s2")
    # The provider's page asks for a style sheet from another host. Nothing leaves this machine.
    page.route(re.compile("^https://"), lambda route: route.fulfill(content_type="text/css", body=""))
    page.goto(f"/batches/{batch}")
    page.get_by_role("link", name="Sign in with your organisation").click()
    page.get_by_role("button", name="ada", exact=True).click()
    expect(page.get_by_role("heading", name="On hold, needs a decision")).to_be_visible()

    page.get_by_role("link", name="Publish as it is…").click()
    assert problems(page) == []
    page.get_by_label("Why this version may be published").fill("Good enough for triage.")
    page.get_by_role("button", name="Publish as it is").click()
    expect(page.get_by_text("Ada Lovelace approved the version on hold")).to_be_visible()
    site.work()
    page.goto(f"/batches/{batch}")
    expect(page.get_by_role("heading", name="Completed")).to_be_visible()
    (task,) = site.call("GET", f"/v1/erasures/{erasure}")["tasks"]
    assert (task["state"], task["on_hold"], task["version"]) == ("completed", False, 1)

    page.goto("/audit-log")
    expect(page.get_by_role("row", name="Ada Lovelace Batch approved")).to_be_visible()
    for kind in ("CSV", "NDJSON"):
        with page.expect_download() as waiting:
            page.get_by_role("link", name=f"Export as {kind}").click()
        assert waiting.value.suggested_filename == f"audit-log.{kind.lower()}"
        assert "batch.approved" in Path(waiting.value.path()).read_text()
    exports = site.call("GET", "/v1/audit-log?action=audit-log.exported")["items"]
    assert [entry["actor"]["name"] for entry in exports] == ["Ada Lovelace"] * 2
    (approval,) = site.call("GET", "/v1/audit-log?action=batch.approved")["items"]
    assert (approval["actor"]["kind"], approval["actor"]["name"]) == ("person", "Ada Lovelace")
    assert approval["target"] == f"batch/{batch}"
    page.get_by_role("button", name="Sign out").click()
    page.goto(f"/batches/{batch}")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
