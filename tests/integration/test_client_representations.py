"""Representations through the client and the command: library, upload, download and progress."""

import asyncio
import json
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import structlog
from sqlalchemy import update
from typer.testing import CliRunner, Result

from app.db.tables import Model
from app.library import add_entry
from lethe.certificate.representation import Representation
from lethe.cli import representations as cli_representations
from lethe.cli.main import app
from lethe.client.errors import Invalid
from tests.integration.client_world import TOY, World, world
from tests.integration.harness import dataset, environment

__all__ = ["world"]
GRAPH, TOKENIZER = b"graph" * 1000, b"{}"
TEXT: dict[str, Any] = {
    "input": {"kind": "text", "max_length": 128},
    "outputs": ["embedding"],
    "normalisation": "unit",
    "origin": "MiniLM, trained on public text",
    "licence": "Apache-2.0",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a graph, a tokenizer, the declaration and manifests."""
    folder = tmp_path_factory.mktemp("representation")
    (folder / "graph.onnx").write_bytes(GRAPH)
    (folder / "tokenizer.json").write_bytes(TOKENIZER)
    (folder / "rep.json").write_text(json.dumps(TEXT))
    (folder / "part0.parquet").write_bytes(dataset())
    (folder / "own.json").write_text(json.dumps(TOY | {"representation": TEXT}))
    image = TEXT | {"input": {"kind": "image", "shape": [3, 8, 8]}}
    (folder / "image.json").write_text(json.dumps(TOY | {"representation": image}))
    (folder / "named.json").write_text(json.dumps(TOY | {"representation": {"library": "minilm"}}))
    return folder


@pytest.fixture(scope="module", autouse=True)
def entry(world: World, files: Path) -> None:
    """Add `minilm` to the library."""
    declaration = Representation.model_validate(TEXT)
    add_entry(world.services, "minilm", declaration, files / "graph.onnx", files / "tokenizer.json")


def _run(world: World, *words: object, code: int = 0) -> Result:
    env = {"LETHE_URL": world.url, "LETHE_API_KEY": world.key, "COLUMNS": "200"}
    done = CliRunner(env=env).invoke(app, [str(word) for word in words])
    assert done.exit_code == code, (done.exit_code, done.stdout, done.stderr, done.exception)
    return done


def test_the_client_completes_a_manifest_that_names_an_entry(world: World) -> None:
    with world.sync() as lethe:
        (listed,) = lethe.representations.list()
        assert listed == lethe.representations.get("minilm")
        model = lethe.models.create("named", TOY | {"representation": {"library": "minilm"}})
        assert model.manifest.representation is not None
        assert model.manifest.representation.normalisation == "unit"
        assert model.representation is not None
        assert (model.representation.library, model.representation.digest) == ("minilm", listed.digest)
        with pytest.raises(Invalid, match="licence"):
            lethe.models.create("other", TOY | {"representation": {"library": "minilm", "licence": "MIT"}})


def test_graph_and_tokenizer_go_up_and_come_down_unchanged(
    world: World, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lethe.client.transfers.PIECE_SIZE", 999)
    with world.sync() as lethe:
        lethe.models.create("own", TOY | {"representation": TEXT})
        lethe.models.upload_representation("own", files / "graph.onnx")
        lethe.models.upload_tokenizer("own", TOKENIZER)
        assert lethe.models.upload_status("own", "representation").complete
        graph = lethe.models.download_representation("own", tmp_path / "g.onnx")
        tokenizer = lethe.models.download_tokenizer("own", tmp_path / "t.json")
        assert (graph.read_bytes(), tokenizer.read_bytes()) == (GRAPH, TOKENIZER)
        lethe.models.delete_file("own", "tokenizer")


def test_the_asynchronous_client_does_the_same(world: World, files: Path, tmp_path: Path) -> None:
    async def upload_and_download() -> bytes:
        async with world.asynchronous() as lethe:
            assert [entry.name async for entry in lethe.representations.list()] == ["minilm"]
            await lethe.models.create("later", TOY | {"representation": TEXT})
            await lethe.models.upload_representation("later", files / "graph.onnx")
            return (await lethe.models.download_representation("later", tmp_path / "a.onnx")).read_bytes()

    assert asyncio.run(upload_and_download()) == GRAPH


def test_the_command_uploads_and_a_second_run_replaces_the_representation(world: World, files: Path) -> None:
    words = ("--representation", files / "graph.onnx", "--tokenizer", files / "tokenizer.json", "--json")
    first = json.loads(_run(world, "model", "register", "cmd", files / "own.json", *words).stdout)
    assert first["representation"]["tokenizer_size"] == len(TOKENIZER)
    second = json.loads(_run(world, "model", "register", "cmd", files / "image.json", "--json").stdout)
    assert second["manifest"]["representation"]["input"]["kind"] == "image"
    assert second["representation"]["tokenizer_size"] is None
    third = json.loads(_run(world, "model", "register", "cmd", files / "named.json", "--json").stdout)
    assert third["representation"]["library"] == "minilm"
    assert "library entry minilm" in _run(world, "model", "show", "cmd").stdout


def test_the_command_shows_the_library(world: World) -> None:
    assert "minilm" in _run(world, "representation", "list").stdout
    assert json.loads(_run(world, "representation", "list", "--json").stdout)[0]["name"] == "minilm"
    shown = _run(world, "representation", "show", "minilm")
    assert "text: max_length 128" in shown.stdout
    assert 'representation.library = "minilm"' in shown.stderr
    _run(world, "representation", "show", "other", code=5)


def test_waiting_shows_how_far_the_registration_is(world: World, files: Path) -> None:
    with world.worker:  # the model stays in validation until this block ends
        with world.sync() as lethe:
            lethe.models.create("slow", TOY)
            lethe.models.upload_part("slow", "part0", files / "part0.parquet")
            lethe.models.validate("slow")
        progress = {"step": "features", "part": "part0", "percent": 42.0, "eta_seconds": 31}
        with world.services.database.writing() as session:
            session.execute(update(Model).where(Model.name == "slow").values(progress=progress))
        assert "features part0  42 %  about 31 s left" in _run(world, "model", "show", "slow").stdout


@pytest.fixture
def server_commands(world: World) -> Iterator[None]:
    """Pause the worker of these tests: commands of the server send log lines to their own standard error.

    Before that, create a model that uses an entry of the library.
    """
    with world.sync() as lethe:
        lethe.models.create("library-user", TOY | {"representation": {"library": "minilm"}})
    before = structlog.get_config()
    with world.worker:
        yield
        structlog.configure(**before)


@pytest.mark.usefixtures("server_commands")
def test_add_and_remove_run_on_the_server(world: World, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of the service are found below `lethe representation`, next to those of the client."""
    group = cli_representations.ENTRY_POINT_GROUP
    points = {name: EntryPoint(name, f"app.library:{name}", group) for name in ("add", "remove")}
    monkeypatch.setattr(cli_representations, "installed_commands", lambda _: points)
    for name, value in environment(world.services.settings).items():
        monkeypatch.setenv(name, value)
    listed = _run(world, "representation", "--help").stdout
    assert [name for name in ("add", "remove", "list", "show") if f" {name} " not in listed] == []
    words: tuple[Any, ...] = ("--manifest", files / "rep.json", "--graph", files / "graph.onnx")
    refused = _run(world, "representation", "add", "second", *words, code=2)
    assert refused.stderr == "lethe: a representation of text needs --tokenizer\n"
    words = (*words, "--tokenizer", files / "tokenizer.json")
    assert "Added second" in _run(world, "representation", "add", "second", *words).stdout
    assert "already has" in _run(world, "representation", "add", "second", *words).stdout
    other = (*words[:3], files / "tokenizer.json", *words[4:])
    assert "different graph" in _run(world, "representation", "add", "second", *other, code=2).stderr
    assert "Removed second" in _run(world, "representation", "remove", "second").stdout
    assert "named second" in _run(world, "representation", "remove", "second", code=2).stderr
    assert "in use by" in _run(world, "representation", "remove", "minilm", code=2).stderr
    broken = files / "broken.toml"
    broken.write_text('outputs = ["a"]\n')
    told = _run(world, "representation", "add", "x", "--manifest", broken, *words[2:], code=2).stderr
    assert "is not the declaration of a representation: input: this field is missing" in told


def test_without_the_service_add_says_how_to_install_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_representations, "installed_commands", lambda _: {})
    told = _run(world, "representation", "add", "x", "--graph", "y", code=2).stderr
    assert "`lethe representation add` belongs to the Lethe service" in told
    assert "pip install ./sdk ." in told
