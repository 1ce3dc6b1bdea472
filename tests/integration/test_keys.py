"""Keys are created in embedded installations only, recognised afterwards, and replaced only on request."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from app.core.clock import new_id, now
from app.core.settings import Settings
from app.core.vault import KeyProblem, write_private
from app.db import log_store
from app.db.signing_keys import announce_key, rotate
from app.gateway.certificates.service import key_set, prove_inclusion, tree_head
from app.services import Services
from lethe.certificate.envelope import Envelope, sign
from lethe.certificate.errors import LogProofInvalid
from lethe.certificate.keys import SigningKey
from lethe.certificate.receipt import (
    NO_DATA_PAYLOAD,
    NoDataHeldV1,
    build_no_data_receipt,
    issue_no_data_held,
    verify_no_data_held,
)
from lethe.certificate.tree_head import verify_tree_head
from tests.integration.harness import environment
from worker.attempt import describe
from worker.signing import check_known, load_signer


def _without(settings: Settings, **changes: object) -> Services:
    return Services(settings.model_copy(update=changes))


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({}, True),
        ({"redis_url": "redis://x"}, False),
        ({"database_url": "sqlite:///x"}, False),
        ({"redis_url": "redis://x", "create_keys": True}, True),
        ({"create_keys": False}, False),
    ],
)
def test_keys_are_made_where_everything_is_embedded_or_on_request(
    given: dict[str, object], made: bool
) -> None:
    assert Settings.model_validate(given).may_create_keys is made


def test_no_key_is_made_up_on_an_installation_with_servers(settings: Settings) -> None:
    services = _without(settings, create_keys=None)
    with pytest.raises(KeyProblem, match="no deployment key"):
        _ = services.vault
    with pytest.raises(KeyProblem, match="no signing key"):
        load_signer(services.settings)
    assert not settings.deployment_key_path.exists()
    assert not settings.signing_key_path.exists()
    services.close()


def test_another_deployment_key_is_refused(settings: Settings, services: Services, tmp_path: Path) -> None:
    assert services.vault is services.vault
    other = tmp_path / "other.key"
    other.write_text("ab" * 32)
    for path, reason in ((other, "not the one"), (tmp_path / "missing.key", "there is no")):
        wrong = _without(settings, deployment_key_file=path)
        with pytest.raises(KeyProblem, match=reason):
            _ = wrong.vault
        wrong.close()
    assert not (tmp_path / "missing.key").exists(), "the database knows a key: a new one could only be wrong"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("part", ["gateway", "worker"])
def test_a_part_without_its_key_ends_with_one_line(settings: Settings, part: str) -> None:
    bare = settings.model_copy(update={"create_keys": False, "port": 0})
    ended = subprocess.run(
        [sys.executable, "-m", "lethe.cli", part],
        env=environment(bare) | {"LETHE_CREATE_KEYS": "false", "HOME": os.environ.get("HOME", "/")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1
    assert "there is no deployment key" in ended.stderr


def test_a_strange_signing_key_signs_nothing_until_it_is_rotated_in(services: Services) -> None:
    old, new = SigningKey.generate(), SigningKey.generate()
    with services.database.writing() as session:
        announce_key(session, old, 0)
        announce_key(session, old, 3)
    with (
        services.database.writing() as session,
        pytest.raises(KeyProblem, match="not the one in use") as told,
    ):
        announce_key(session, new, 3)
    assert describe(told.value) == str(told.value), "the attempt's error says what to do"
    with services.database.reading() as session, pytest.raises(KeyProblem, match="no signing key"):
        check_known(session, services.settings)
    assert not services.settings.signing_key_path.exists()
    with services.database.writing() as session:
        rotate(session, new, 3)
        announce_key(session, new, 3)
    for attempt in (announce_key, rotate):
        with services.database.writing() as session, pytest.raises(KeyProblem, match="replaced by a newer"):
            attempt(session, old, 3)
    with services.database.writing() as session, pytest.raises(KeyProblem, match="nothing was rotated"):
        rotate(session, new, 3)


def test_a_rotation_signs_the_tree_head_again_and_moves_nothing_else(services: Services) -> None:
    old, new = SigningKey.generate(), SigningKey.generate()
    with services.database.writing() as session:
        log_store.append(session, "00" * 32, old, "lethe")
        before = log_store.lock(session).tree_head
    with services.database.writing() as session:
        log_store.hand_over(session, new, "lethe")
    with services.database.reading() as session:
        keys, after = key_set(session), tree_head(session).tree_head
    assert before.split("\n\n")[0] == after.split("\n\n")[0], "the same tree"
    assert verify_tree_head(after, keys).size == 1
    with pytest.raises(LogProofInvalid, match="retired key"):
        verify_tree_head(before, keys)


def test_a_worker_signs_a_head_that_an_earlier_version_left_under_the_old_key(services: Services) -> None:
    old, new = SigningKey.generate(), SigningKey.generate()
    with services.database.writing() as session:
        assert not log_store.renew_head(session, old, "lethe"), "an empty log has no head to sign"
        log_store.append(session, "00" * 32, old, "lethe")
        rotate(session, new, 1)
    with services.database.writing() as session:
        assert log_store.renew_head(session, new, "lethe")
        assert not log_store.renew_head(session, new, "lethe")
    with services.database.reading() as session:
        assert verify_tree_head(tree_head(session).tree_head, key_set(session)).size == 1


@pytest.mark.parametrize("given", ["file", "variable"])
def test_a_retired_key_is_refused_with_the_place_where_the_new_one_belongs(
    settings: Settings, services: Services, given: str
) -> None:
    old, new = SigningKey.generate(), SigningKey.generate()
    with services.database.writing() as session:
        announce_key(session, old, 0)
        rotate(session, new, 0)
    place = str(settings.signing_key_path)
    write_private(settings.signing_key_path, old.to_pem().encode())
    if given == "variable":
        settings = settings.model_copy(update={"signing_key": SecretStr(old.to_pem())})
        place = "LETHE_SIGNING_KEY"
    with services.database.reading() as session, pytest.raises(KeyProblem, match="Put the new key") as told:
        check_known(session, settings)
    assert place in str(told.value)


def test_statements_of_no_data_outlive_a_rotation(services: Services) -> None:
    """Statements of the first format are dated by the size of the log, later ones by their index in it."""
    old, new = SigningKey.generate(), SigningKey.generate()

    def first_format(signer: SigningKey) -> bytes:
        with services.database.writing() as session:
            size = log_store.lock(session).size
            announce_key(session, signer, size)
        statement = NoDataHeldV1(
            request_id=str(new_id()),
            model="toy",
            model_id=str(new_id()),
            salt="00" * 16,
            commitment="00" * 32,
            log_size=size,
            issued_at=now(),
        )
        return sign(statement.to_bytes(), signer, NO_DATA_PAYLOAD).raw

    def logged(signer: SigningKey) -> tuple[Envelope, int]:
        details = {"request_id": str(new_id()), "model": "toy", "model_id": str(new_id())}
        envelope = issue_no_data_held(subject_id="ada", issued_at=now(), signer=signer, **details)
        with services.database.writing() as session:
            return envelope, log_store.append(session, envelope.digest, signer, "lethe")

    receipts = [first_format(old)]
    statements = [logged(old)]
    receipts.append(first_format(old))
    with services.database.writing() as session:
        rotate(session, new, log_store.lock(session).size)
    receipts.append(first_format(new))
    statements.append(logged(new))
    with services.database.reading() as session:
        keys = key_set(session)
        for envelope, place in statements:
            proof = prove_inclusion(session, place)
            receipt = build_no_data_receipt(
                envelope, tree_head=proof.checkpoint, index=place, path=proof.path, keys=keys
            )
            receipts.append(receipt.to_bytes())
    for raw in receipts:
        verify_no_data_held(raw, keys)
    windows = {key.key_id: (key.valid_from, key.valid_until) for key in keys.keys}
    assert windows == {old.key_id: (0, 2), new.key_id: (1, None)}
