"""Rotating the signing key of a running service as documented. The old key proves nothing afterwards."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.core.vault import write_private
from lethe import Lethe
from lethe.certificate.envelope import from_base64, parse, sign
from lethe.certificate.keys import KeySet, SigningKey
from lethe.certificate.merkle import MemoryTree, leaf_hash
from lethe.certificate.pack import Pack, build_pack
from lethe.certificate.tree_head import TreeHead, parse_tree_head, sign_tree_head
from lethe.certificate.verify import verify
from tests.integration.client_world import register
from tests.integration.test_up import LETHE, Up

pytestmark = pytest.mark.slow


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    running = Up(tmp_path)
    yield running
    running.end()


def lethe_worker(up: Up, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LETHE_")}
    return subprocess.run(
        [LETHE, "worker", *arguments],
        env=kept | {"LETHE_DATA_DIR": str(up.data)} | variables,
        cwd=up.data.parent,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def erase(lethe: Lethe, person: str) -> Pack:
    """Erase one person in one attempt, and return the pack of the certificate."""
    asked = lethe.erasures.create([person], models=["toy"], reference=person)
    lethe.models.flush("toy")
    task = lethe.erasures.wait(asked.id, timeout=240).tasks[0]
    assert task.certificate_id is not None
    assert task.batch_id is not None
    assert lethe.batches.get(task.batch_id).attempt == 1
    return lethe.certificates.pack(task.certificate_id)


def forged_in_2030(pack: Pack, key: SigningKey) -> Pack:
    """Return the same claim with a later date, in a log that the thief made up."""
    statement = json.loads(parse(from_base64(pack.envelope)).payload)
    statement["predicate"]["issued_at"] = "2030-01-01T00:00:00Z"
    envelope = sign(json.dumps(statement).encode(), key)
    log = MemoryTree([leaf_hash(bytes.fromhex(envelope.digest))])
    origin = parse_tree_head(pack.log.tree_head).origin
    return build_pack(
        envelope=envelope,
        tree_head=sign_tree_head(TreeHead(origin, 1, log.root()), key),
        index=0,
        path=[],
        keys=pack.keys,
    )


def test_a_rotation_on_a_running_service(up: Up, tmp_path: Path) -> None:
    address, api_key = up.address(), up.key()
    assert api_key is not None
    place = up.data / "keys" / "signing.pem"
    new = SigningKey.generate()
    with Lethe(address, api_key) as lethe:
        register(lethe, "toy")
        before = erase(lethe, "s1")
        old = SigningKey.from_pem(place.read_text())
        assert verify(before, keys=lethe.log.keys()).verified

        write_private(tmp_path / "new-signing.pem", new.to_pem().encode())
        forgotten = lethe_worker(up, "--rotate-signing-key")
        assert forgotten.returncode == 2
        assert "nothing was rotated" in forgotten.stderr
        assert str(place) in forgotten.stderr
        assert "LETHE_SIGNING_KEY_FILE" in forgotten.stderr

        handed_over = lethe_worker(
            up, "--rotate-signing-key", LETHE_SIGNING_KEY_FILE=str(tmp_path / "new-signing.pem")
        )
        assert handed_over.returncode == 0, handed_over.stderr
        left_behind = lethe_worker(up)
        assert left_behind.returncode == 2
        assert "replaced by a newer one" in left_behind.stderr
        assert str(place) in left_behind.stderr
        (tmp_path / "new-signing.pem").replace(place)

        keys = lethe.log.keys()
        _check_served_and_forged(lethe, before, keys, old)
        after = erase(lethe, "s2")
        assert verify(after, keys=lethe.log.keys()).verified
        assert len(after.predecessors) == 1
        _check_served_and_forged(lethe, before, lethe.log.keys(), old)


def _check_served_and_forged(lethe: Lethe, before: Pack, keys: KeySet, old: SigningKey) -> None:
    assert [key.valid_until is None for key in keys.keys] == [False, True]
    stale = verify(before, keys=keys)
    assert [line.number for line in stale.failed] == [7]
    assert "Download the pack and the keys again" in stale.failed[0].detail
    certificate_id = json.loads(parse(from_base64(before.envelope)).payload)["predicate"]["certificate_id"]
    assert verify(lethe.certificates.pack(certificate_id), keys=keys).verified
    assert 7 in [line.number for line in verify(forged_in_2030(before, old), keys=keys).failed]
