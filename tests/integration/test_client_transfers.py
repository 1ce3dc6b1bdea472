"""What breaks between client and gateway: cut, garbled and lost answers, on a real connection."""

import asyncio
import hashlib
import inspect
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import client
from client import Lethe
from tests.integration.client_world import TOY, World, register, world
from tests.integration.harness import dataset

__all__ = ["world"]
Call = Callable[[Callable[[Any], Any]], Any]


@pytest.fixture(params=["blocking", "awaiting"])
def call(request: pytest.FixtureRequest, world: World) -> Call:
    """Run something on either client, and give back what it gives."""

    def blocking(use: Callable[[Any], Any]) -> Any:
        with world.sync() as lethe:
            return use(lethe)

    async def awaiting(use: Callable[[Any], Any]) -> Any:
        async with world.awaiting() as lethe:
            result = use(lethe)
            return await result if inspect.isawaitable(result) else result

    return blocking if request.param == "blocking" else lambda use: asyncio.run(awaiting(use))


@pytest.fixture(scope="module")
def lethe(world: World) -> Iterator[Lethe]:
    with world.sync() as made:
        register(made, "toy")
        yield made


@pytest.fixture
def tricks(world: World, lethe: Lethe) -> Iterator[list[str]]:
    world.meddler.on = "/checkpoint"
    world.meddler.seen.clear()
    yield world.meddler.tricks
    assert not world.meddler.tricks, "a trick was not played"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_cut_download_goes_on_where_it_was(
    world: World, lethe: Lethe, call: Call, tricks: list[str], tmp_path: Path
) -> None:
    tricks[:] = ["cut", "cut"]
    seen: list[int] = []
    to = tmp_path / "model.safetensors"
    call(lambda api: api.versions.download("toy", to, tell=lambda done, _: seen.append(done)))
    version = lethe.versions.list("toy")[0]
    assert _digest(to) == version.sha256
    half = version.size // 2
    ranges = [headers.get("range") for headers in world.meddler.seen]
    assert ranges == [None, f"bytes={half}-", f"bytes={half + (version.size - half) // 2}-"]
    assert world.meddler.seen[1]["if-range"] == f'"{version.sha256}"'
    assert seen == sorted(seen)
    assert list(tmp_path.iterdir()) == [to]


def test_a_later_process_goes_on_too(
    world: World, lethe: Lethe, call: Call, tricks: list[str], tmp_path: Path
) -> None:
    tricks[:] = ["cut"]
    to = tmp_path / "model.safetensors"
    with Lethe(world.url, world.key, retry=client.Retry(times=0)) as hasty, pytest.raises(client.Unreachable):
        hasty.versions.download("toy", to)
    assert not to.exists()
    call(lambda api: api.versions.download("toy", to))
    assert _digest(to) == lethe.versions.list("toy")[0].sha256
    assert world.meddler.seen[1]["range"].startswith("bytes=")
    assert list(tmp_path.iterdir()) == [to]


def test_a_garbled_download_is_refused_and_leaves_nothing(
    call: Call, tricks: list[str], tmp_path: Path
) -> None:
    to = tmp_path / "model.safetensors"
    to.write_text("the file that was there before")
    tricks[:] = ["garble"]
    with pytest.raises(client.DownloadCorrupt):
        call(lambda api: api.versions.download("toy", to))
    assert to.read_text() == "the file that was there before"
    assert list(tmp_path.iterdir()) == [to]


def test_what_an_earlier_process_left_wrong_is_fetched_anew(
    lethe: Lethe, call: Call, tricks: list[str], tmp_path: Path
) -> None:
    to, version = tmp_path / "model.safetensors", lethe.versions.list("toy")[0]
    (tmp_path / f"{to.name}.{version.sha256}.part").write_bytes(b"x" * 50)
    call(lambda api: api.versions.download("toy", to))
    assert _digest(to) == version.sha256


@pytest.mark.parametrize("trick", ["lose", "refuse"])
def test_an_erasure_whose_answer_was_lost_is_one_erasure(
    world: World, lethe: Lethe, call: Call, tricks: list[str], trick: str
) -> None:
    world.meddler.on = "/v1/erasures"
    tricks[:] = [trick, trick]
    reference = f"lost-{secrets.token_hex(8)}"
    asked = call(lambda api: api.erasures.create(["s5"], models=["toy"], reference=reference))
    sent = [headers["idempotency-key"] for headers in world.meddler.seen]
    assert len(sent) == 3
    assert len(set(sent)) == 1
    assert [found.id for found in lethe.erasures.list(reference=reference)] == [asked.id]
    lethe.erasures.withdraw(asked.id)


def test_a_refused_stream_and_a_cut_one_are_taken_up_again(
    world: World, lethe: Lethe, tricks: list[str]
) -> None:
    asked = lethe.erasures.create(["s6"], models=["toy"])
    lethe.models.flush("toy")
    batch_id = lethe.erasures.wait(asked.id, timeout=60).tasks[0].batch_id
    assert batch_id is not None
    whole = list(lethe.batches.events(batch_id))
    world.meddler.on, tricks[:] = "/events", ["refuse", "cut", "lose"]
    world.meddler.seen.clear()
    assert list(lethe.batches.events(batch_id)) == whole
    assert len(world.meddler.seen) == 4


def test_an_upload_goes_on_where_it_was(
    world: World, lethe: Lethe, call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name, content = f"up-{secrets.token_hex(8)}", dataset()
    lethe.models.create(name, TOY)
    file = tmp_path / "part.parquet"
    file.write_bytes(content)
    first = {"Content-Range": f"bytes 0-999/{len(content)}"}
    lethe.http.put(f"/v1/models/{name}/dataset/part0", content=content[:1000], headers=first)
    seen: list[int] = []
    monkeypatch.setattr("client.upload.PIECE", 1500)
    done = call(lambda api: api.models.upload_part(name, "part0", file, tell=lambda at, _: seen.append(at)))
    assert done.sha256 == hashlib.sha256(content).hexdigest()
    assert seen[:2] == [2500, 4000]
    assert seen[-1] == len(content)
    call(lambda api: api.models.upload_part(name, "part0", file, tell=lambda at, _: seen.append(at)))
    assert seen[-1] == seen[-2], "a file that is there is not sent again"


def test_an_upload_begun_with_another_file_begins_anew(
    lethe: Lethe, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, content = f"other-{secrets.token_hex(8)}", dataset()
    lethe.models.create(name, TOY)
    first = {"Content-Range": f"bytes 0-999/{len(content)}"}
    lethe.http.put(f"/v1/models/{name}/dataset/part0", content=b"x" * 1000, headers=first)
    done = call(lambda api: api.models.upload_part(name, "part0", content))
    assert done.sha256 == hashlib.sha256(content).hexdigest()
