"""Faults between client and gateway: cut, corrupted and lost responses, on a real connection."""

import asyncio
import hashlib
import inspect
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lethe import DownloadCorrupt, Lethe, Retry, Unreachable
from tests.integration.client_world import JOB_SECONDS, TOY, World, register, world
from tests.integration.harness import dataset

__all__ = ["world"]
Call = Callable[[Callable[[Any], Any]], Any]


@pytest.fixture(params=["blocking", "async"])
def call(request: pytest.FixtureRequest, world: World) -> Call:
    """Run a function on either client and return its result."""

    def blocking(use: Callable[[Any], Any]) -> Any:
        with world.sync() as lethe:
            return use(lethe)

    async def asynchronous(use: Callable[[Any], Any]) -> Any:
        async with world.asynchronous() as lethe:
            result = use(lethe)
            return await result if inspect.isawaitable(result) else result

    return blocking if request.param == "blocking" else lambda use: asyncio.run(asynchronous(use))


@pytest.fixture(scope="module")
def lethe(world: World) -> Iterator[Lethe]:
    with world.sync() as client:
        register(client, "toy")
        yield client


@pytest.fixture
def tricks(world: World, lethe: Lethe) -> Iterator[list[str]]:
    world.meddler.on = "/checkpoint"
    world.meddler.seen.clear()
    yield world.meddler.tricks
    assert not world.meddler.tricks, "a trick was not played"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_cut_download_resumes(
    world: World, lethe: Lethe, call: Call, tricks: list[str], tmp_path: Path
) -> None:
    tricks[:] = ["cut", "cut"]
    seen: list[int] = []
    to = tmp_path / "model.safetensors"
    call(lambda api: api.versions.download("toy", to, on_progress=lambda done, _: seen.append(done)))
    version = lethe.versions.list("toy")[0]
    assert _digest(to) == version.sha256
    half = version.size // 2
    ranges = [headers.get("range") for headers in world.meddler.seen]
    assert ranges == [None, f"bytes={half}-", f"bytes={half + (version.size - half) // 2}-"]
    assert world.meddler.seen[1]["if-range"] == f'"{version.sha256}"'
    assert seen == sorted(seen)
    assert list(tmp_path.iterdir()) == [to]


def test_a_later_process_resumes_a_download(
    world: World, lethe: Lethe, call: Call, tricks: list[str], tmp_path: Path
) -> None:
    tricks[:] = ["cut"]
    to = tmp_path / "model.safetensors"
    with Lethe(world.url, world.key, retry=Retry(times=0)) as hasty, pytest.raises(Unreachable):
        hasty.versions.download("toy", to)
    assert not to.exists()
    call(lambda api: api.versions.download("toy", to))
    assert _digest(to) == lethe.versions.list("toy")[0].sha256
    assert world.meddler.seen[1]["range"].startswith("bytes=")
    assert list(tmp_path.iterdir()) == [to]


def test_a_corrupted_download_raises_and_leaves_nothing(
    call: Call, tricks: list[str], tmp_path: Path
) -> None:
    to = tmp_path / "model.safetensors"
    to.write_text("the file that was there before")
    tricks[:] = ["garble"]
    with pytest.raises(DownloadCorrupt):
        call(lambda api: api.versions.download("toy", to))
    assert to.read_text() == "the file that was there before"
    assert list(tmp_path.iterdir()) == [to]


def test_a_wrong_partial_file_is_downloaded_again(
    lethe: Lethe, call: Call, tricks: list[str], tmp_path: Path
) -> None:
    to, version = tmp_path / "model.safetensors", lethe.versions.list("toy")[0]
    (tmp_path / f"{to.name}.{version.sha256}.part").write_bytes(b"x" * 50)
    call(lambda api: api.versions.download("toy", to))
    assert _digest(to) == version.sha256


@pytest.mark.parametrize("trick", ["lose", "refuse"])
def test_an_erasure_whose_response_was_lost_is_created_once(
    world: World, lethe: Lethe, call: Call, tricks: list[str], trick: str
) -> None:
    world.meddler.on = "/v1/erasures"
    tricks[:] = [trick, trick]
    reference = f"lost-{secrets.token_hex(8)}"
    erasure = call(lambda api: api.erasures.create(["s5"], models=["toy"], reference=reference))
    sent = [headers["idempotency-key"] for headers in world.meddler.seen]
    assert len(sent) == 3
    assert len(set(sent)) == 1
    assert [match.id for match in lethe.erasures.list(reference=reference)] == [erasure.id]
    lethe.erasures.withdraw(erasure.id)


def test_a_refused_or_cut_event_stream_is_resumed(world: World, lethe: Lethe, tricks: list[str]) -> None:
    erasure = lethe.erasures.create(["s6"], models=["toy"])
    lethe.models.flush("toy")
    batch_id = lethe.erasures.wait(erasure.id, timeout=JOB_SECONDS).tasks[0].batch_id
    assert batch_id is not None
    whole = list(lethe.batches.events(batch_id))
    world.meddler.on, tricks[:] = "/events", ["refuse", "cut", "lose"]
    world.meddler.seen.clear()
    assert list(lethe.batches.events(batch_id)) == whole
    assert len(world.meddler.seen) == 4


def test_an_upload_resumes(
    world: World, lethe: Lethe, call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name, content = f"up-{secrets.token_hex(8)}", dataset()
    lethe.models.create(name, TOY)
    file = tmp_path / "part.parquet"
    file.write_bytes(content)
    first = {"Content-Range": f"bytes 0-999/{len(content)}"}
    lethe.http.put(f"/v1/models/{name}/dataset/part0", content=content[:1000], headers=first)
    seen: list[int] = []
    monkeypatch.setattr("lethe.client.transfers.PIECE_SIZE", 1500)

    def upload(api: Any) -> Any:
        return api.models.upload_part(name, "part0", file, on_progress=lambda at, _: seen.append(at))

    done = call(upload)
    assert done.sha256 == hashlib.sha256(content).hexdigest()
    assert seen[:2] == [2500, 4000]
    assert seen[-1] == len(content)
    call(upload)
    assert seen[-1] == seen[-2], "a file that has arrived is not sent again"


def test_an_upload_that_another_file_began_starts_over(
    lethe: Lethe, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, content = f"other-{secrets.token_hex(8)}", dataset()
    lethe.models.create(name, TOY)
    first = {"Content-Range": f"bytes 0-999/{len(content)}"}
    lethe.http.put(f"/v1/models/{name}/dataset/part0", content=b"x" * 1000, headers=first)
    done = call(lambda api: api.models.upload_part(name, "part0", content))
    assert done.sha256 == hashlib.sha256(content).hexdigest()
