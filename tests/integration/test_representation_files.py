"""Representations on their way into a model: uploads, imports, the library, downloads, backup and sweep."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from app import library
from app.core.clock import new_id, now
from app.core.settings import Settings
from app.db import paths, transitions
from app.db.manifest import Manifest
from app.db.representations import files_of
from app.db.states import JobKind
from app.db.tables import DatasetImport, DatasetPart, LibraryRepresentation, Model, ModelFile
from app.dispatcher import orphan_sweep
from app.gateway.auth.scopes import Scope
from app.gateway.main import create_app
from app.library import LibraryError, add_entry, remove_entry
from app.services import Services
from lethe.certificate.representation import Representation
from tests.integration.harness import MANIFEST, dataset, key_for
from tests.integration.model_api import Api, Headers
from worker.context import JobContext
from worker.imports import import_parts

GRAPH, TOKENIZER = b"an ONNX graph" * 100, b'{"version": "1.0"}'
TEXT: dict[str, Any] = {
    "input": {"kind": "text", "max_length": 128},
    "outputs": ["embedding"],
    "origin": "MiniLM, trained on public text",
    "licence": "Apache-2.0",
}
VECTOR: dict[str, Any] = TEXT | {"input": {"kind": "vector", "width": 4}}


@pytest.fixture
def api(gateway: TestClient, admin: Headers) -> Api:
    return Api(gateway, admin)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Return a graph and a tokenizer on disk."""
    graph, tokenizer = tmp_path / "graph.onnx", tmp_path / "tokenizer.json"
    graph.write_bytes(GRAPH)
    tokenizer.write_bytes(TOKENIZER)
    return graph, tokenizer


@pytest.fixture
def entry(services: Services, files: tuple[Path, Path]) -> Representation:
    """Add `minilm` to the library and return its declaration."""
    declaration = Representation.model_validate(TEXT)
    assert add_entry(services, "minilm", declaration, *files)
    return declaration


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _get(api: Api, path: str, **headers: str) -> Any:
    return api.gateway.get(f"/v1/models/toy{path}", headers=api.headers | headers)


def test_a_graph_and_a_tokenizer_arrive_and_are_named_by_one_digest(api: Api) -> None:
    api.create(representation=TEXT)
    assert api.call("GET", "/toy")["representation"] is None
    half = len(GRAPH) // 2
    first = {"Content-Range": f"bytes 0-{half - 1}/{len(GRAPH)}"}
    rest = {"Content-Range": f"bytes {half}-{len(GRAPH) - 1}/{len(GRAPH)}"}
    api.put("representation", GRAPH[:half], 202, first)
    assert api.call("GET", "/toy/representation")["received"] == half
    assert api.put("representation", GRAPH[half:], 201, rest)["sha256"] == _sha256(GRAPH)
    incomplete = api.call("GET", "/toy")["representation"]
    assert (incomplete["digest"], incomplete["graph_size"]) == (None, len(GRAPH))
    api.put("tokenizer", TOKENIZER)
    assert api.call("GET", "/toy")["representation"] == {
        "digest": Representation.model_validate(TEXT).digest(_sha256(GRAPH), _sha256(TOKENIZER)),
        "graph_sha256": _sha256(GRAPH),
        "graph_size": len(GRAPH),
        "tokenizer_sha256": _sha256(TOKENIZER),
        "tokenizer_size": len(TOKENIZER),
        "library": None,
    }
    api.call("DELETE", "/toy/representation", 204)
    api.call("GET", "/toy/representation", 404)


def test_files_without_a_use_are_refused_with_the_way_out(api: Api, entry: Representation) -> None:
    api.create()
    assert "has no `representation`" in api.put("representation", GRAPH, 409)["detail"]
    api.call("PATCH", "/toy", json={"representation": VECTOR})
    assert "only text has a tokenizer" in api.put("tokenizer", TOKENIZER, 409)["detail"]
    api.call("PATCH", "/toy", json={"representation": None})
    named = entry.model_dump(mode="json") | {"library": "minilm"}
    api.call("PATCH", "/toy", json={"representation": named})
    assert "remove `representation.library`" in api.put("representation", GRAPH, 409)["detail"]


def test_validation_waits_for_every_file(api: Api, entry: Representation) -> None:
    api.create(representation=TEXT)
    api.put("dataset/part0", dataset())
    assert "graph of the representation is missing" in api.call("POST", "/toy/validate", 409)["detail"]
    api.put("representation", GRAPH)
    assert "tokenizer of the representation is missing" in api.call("POST", "/toy/validate", 409)["detail"]
    named = entry.model_dump(mode="json") | {"library": "minilm"}
    api.call("PATCH", "/toy", json={"representation": named})
    api.call("POST", "/toy/validate", 202)


def test_a_changed_representation_forgets_the_files_it_no_longer_uses(api: Api, services: Services) -> None:
    api.create(representation=TEXT)
    api.put("representation", GRAPH)
    api.put("tokenizer", TOKENIZER)
    vector = VECTOR | {"input": {"kind": "vector", "width": 4, "max_length": None}}
    view = api.call("PATCH", "/toy", json={"representation": vector})["representation"]
    assert (view["graph_sha256"], view["tokenizer_sha256"]) == (_sha256(GRAPH), None)
    api.call("PATCH", "/toy", json={"representation": None})
    with services.database.reading() as session:
        assert session.scalars(select(ModelFile)).all() == []


def test_large_graphs_and_tokenizers_are_refused(settings: Settings, admin: Headers) -> None:
    small = settings.model_copy(update={"max_representation_bytes": 1024, "max_tokenizer_bytes": 1024})
    with TestClient(create_app(small)) as gateway:
        api = Api(gateway, admin)
        api.create(representation=TEXT)
        for place in ("representation", "tokenizer"):
            api.put(place, b"x" * 1025, 413)
            api.put(place, b"x", 413, {"Content-Range": "bytes 0-0/1025"})
            api.put(place, b"x" * 1024)
        api.put("weights", b"x" * 1025, 201)


def test_imports_are_checked_copied_and_never_taken_for_parts(
    settings: Settings, admin: Headers, tmp_path: Path, files: tuple[Path, Path]
) -> None:
    allowed = settings.model_copy(
        update={"import_roots": f"*=file://{tmp_path}", "max_tokenizer_bytes": 1024}
    )
    services = Services(allowed)
    with TestClient(create_app(allowed)) as gateway:
        api = Api(gateway, admin)
        api.create(representation=TEXT)
        outside = {"uri": "file:///etc/hostname"}
        api.call("POST", "/toy/representation/import", 403, json=outside)
        for kind, file in zip(("representation", "tokenizer"), files, strict=True):
            api.call("POST", f"/toy/{kind}/import", 202, json={"uri": f"file://{file}"})
        assert api.call("GET", "/toy/dataset") == []
        assert "no data yet" in api.call("POST", "/toy/validate", 409)["detail"]
        api.put("dataset/part0", dataset())
        api.call("POST", "/toy/validate", 202)
        files[1].write_bytes(b"x" * 1025)
        assert _import(services) == ["tokenizer: not imported, because the file is longer than 1024 bytes"]
        files[1].write_bytes(TOKENIZER)
        assert _import(services) == []
        view = api.call("GET", "/toy")["representation"]
        assert (view["graph_sha256"], view["tokenizer_sha256"]) == (_sha256(GRAPH), _sha256(TOKENIZER))
        with services.database.reading() as session:
            assert session.scalars(select(DatasetImport)).all() == []
            assert [part.name for part in session.scalars(select(DatasetPart))] == ["part0"]
    services.close()


def _import(services: Services) -> list[str]:
    """Run the imports of the only model in an attempt of their own."""
    with services.database.writing() as session:
        model = session.scalars(select(Model)).one()
        job = transitions.create_job(session, JobKind.REGISTER, model.id, now())
        transitions.dispatch(session, job, now())
        assert job.token is not None
        assert transitions.claim(session, job.id, job.token, now())
    return import_parts(JobContext.load(services, job.id, job.token))


def test_an_uploaded_file_replaces_a_planned_import_and_the_other_way_round_is_refused(
    settings: Settings, admin: Headers, tmp_path: Path, files: tuple[Path, Path]
) -> None:
    allowed = settings.model_copy(update={"import_roots": f"*=file://{tmp_path}"})
    with TestClient(create_app(allowed)) as gateway:
        api = Api(gateway, admin)
        api.create(representation=VECTOR)
        planned = {"uri": f"file://{files[0]}"}
        api.call("POST", "/toy/representation/import", 202, json=planned)
        api.put("representation", GRAPH)
        assert (
            "already has a graph"
            in api.call("POST", "/toy/representation/import", 409, json=planned)["detail"]
        )
        api.call("DELETE", "/toy/representation", 204)
        api.call("POST", "/toy/representation/import", 202, json=planned)
        api.call("DELETE", "/toy/representation", 204)
        api.call("DELETE", "/toy/representation", 404)


def test_files_are_downloaded_in_ranges_by_the_tenant_only(
    api: Api, services: Services, entry: Representation
) -> None:
    api.create(representation=entry.model_dump(mode="json") | {"library": "minilm"})
    whole = _get(api, "/representation/content")
    assert (whole.content, whole.headers["etag"]) == (GRAPH, f'"{_sha256(GRAPH)}"')
    part = _get(api, "/tokenizer/content", Range="bytes=2-5")
    assert (part.status_code, part.content) == (206, TOKENIZER[2:6])
    again = {"If-None-Match": f'"{_sha256(GRAPH)}"'}
    assert _get(api, "/representation/content", **again).status_code == 304
    stranger = key_for(services, "stranger", Scope.ADMIN)
    without_scope = key_for(services, "stranger", Scope.ERASURES_READ)
    for path in ("/representation", "/representation/content", "/tokenizer", "/tokenizer/content"):
        answers = [api.gateway.get(f"/v1/models/toy{path}", headers=key) for key in (stranger, without_scope)]
        assert [answer.status_code for answer in answers] == [404, 403]


def test_the_library_is_the_same_for_all_tenants(api: Api, services: Services, entry: Representation) -> None:
    stranger = key_for(services, "stranger", Scope.MODELS_READ)
    for headers in (api.headers, stranger):
        (listed,) = api.gateway.get("/v1/representations", headers=headers).json()["items"]
        assert listed["digest"] == entry.digest(_sha256(GRAPH), _sha256(TOKENIZER))
        assert listed == api.gateway.get("/v1/representations/minilm", headers=headers).json()
    assert api.gateway.get("/v1/representations/other", headers=stranger).status_code == 404
    without_scope = key_for(services, "stranger", Scope.ERASURES_READ)
    assert api.gateway.get("/v1/representations", headers=without_scope).status_code == 403


def test_a_manifest_must_repeat_the_entry_that_it_names(api: Api, entry: Representation) -> None:
    named = entry.model_dump(mode="json") | {"library": "minilm"}
    wrong = named | {"input": {"kind": "text", "max_length": 64}, "licence": "MIT"}
    body: dict[str, Any] = {"name": "toy", "manifest": MANIFEST | {"representation": wrong}}
    assert (
        "differs from the library's in input.max_length, licence"
        in (api.call("POST", "", 422, json=body)["detail"])
    )
    body["manifest"]["representation"] = named | {"library": "other"}
    assert "The library has no representation" in api.call("POST", "", 422, json=body)["detail"]
    api.create(representation=named)
    view = api.call("GET", "/toy")["representation"]
    assert (view["library"], view["graph_sha256"]) == ("minilm", _sha256(GRAPH))
    api.call("PATCH", "/toy", 422, json={"representation": {"origin": "somewhere else"}})
    api.call("PATCH", "/toy", json={"policy": {"batch_subjects": 3}})


def test_an_entry_is_never_changed_and_stays_while_a_model_uses_it(
    api: Api, services: Services, entry: Representation, files: tuple[Path, Path]
) -> None:
    assert not add_entry(services, "minilm", entry, *files), "the same again changes nothing"
    other = entry.model_copy(update={"licence": "MIT"})
    with pytest.raises(LibraryError, match="with a different declaration"):
        add_entry(services, "minilm", other, *files)
    api.create(representation=entry.model_dump(mode="json") | {"library": "minilm"})
    with pytest.raises(LibraryError, match="in use by the model toy"):
        remove_entry(services, "minilm")
    api.call("DELETE", "/toy")
    assert len(services.storage.list("library")) == 2, "retirement leaves the library alone"
    assert _get(api, "/representation/content").status_code == 410
    remove_entry(services, "minilm")
    assert services.storage.list("library") == []
    with pytest.raises(LibraryError, match="no representation named minilm"):
        remove_entry(services, "minilm")


def test_what_the_library_cannot_take_is_refused_before_anything_is_written(
    services: Services, files: tuple[Path, Path]
) -> None:
    graph, tokenizer = files
    text, vector = Representation.model_validate(TEXT), Representation.model_validate(VECTOR)
    small = Services(services.settings.model_copy(update={"max_representation_bytes": 1024}))
    cases = (
        (services, "Bad Name", text, tokenizer, "lower-case letters"),
        (services, "a", text, None, "needs --tokenizer"),
        (services, "a", vector, tokenizer, "only a representation of text"),
        (services, "a", text.model_copy(update={"library": "b"}), tokenizer, "names no `library`"),
        (small, "a", text, tokenizer, "LETHE_MAX_REPRESENTATION_BYTES"),
    )
    for target, name, declaration, tokenizer_file, message in cases:
        with pytest.raises(LibraryError, match=message):
            add_entry(target, name, declaration, graph, tokenizer_file)
    assert services.storage.list("library") == []
    small.close()


def test_an_entry_that_loses_a_race_leaves_no_files(
    services: Services, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, entry: Representation
) -> None:
    monkeypatch.setattr(library, "entry_named", lambda *_, **__: None)
    with pytest.raises(LibraryError, match="at the same time"):
        add_entry(services, "minilm", entry, *files)
    with services.database.reading() as session:
        kept = session.scalars(select(LibraryRepresentation)).one()
    assert services.storage.list("library") == sorted([kept.graph_path, str(kept.tokenizer_path)])


def test_retirement_deletes_the_models_own_files(api: Api, services: Services) -> None:
    api.create(representation=TEXT)
    api.put("representation", GRAPH)
    api.put("tokenizer", TOKENIZER)
    assert len(services.storage.list("datasets")) == 2
    api.call("DELETE", "/toy")
    assert services.storage.list("datasets") == []
    with services.database.reading() as session:
        assert session.scalars(select(ModelFile)).all() == []


def test_a_model_says_how_far_its_registration_is(api: Api, services: Services) -> None:
    api.create()
    progress = {"step": "features", "part": "part0", "percent": 42.0, "eta_seconds": 31}
    with services.database.writing() as session:
        session.execute(update(Model).values(progress=progress))
    assert api.call("GET", "/toy")["progress"] == progress


def test_features_files_are_not_swept(api: Api, services: Services) -> None:
    api.create(representation=VECTOR)
    api.put("dataset/part0", dataset())
    folder = paths.attempt(new_id(), new_id())
    kept = services.storage.write(f"{folder}/part0.features.parquet", [b"features"])
    stray = services.storage.write(f"{folder}/part1.features.parquet", [b"features"])
    with services.database.writing() as session:
        session.execute(
            update(DatasetPart).values(
                features_path=kept.path,
                features_sha256=kept.sha256,
                features_size=kept.size,
                features_of="0" * 64,
            )
        )
    assert orphan_sweep.sweep(services) == 1
    assert services.storage.exists(kept.path)
    assert not services.storage.exists(stray.path)


def test_a_changed_manifest_switches_between_own_files_and_the_librarys(
    api: Api, services: Services, entry: Representation
) -> None:
    api.create(representation=TEXT)
    api.put("representation", b"own graph")
    assert _files(services) == (_sha256(b"own graph"), None)
    api.call("PATCH", "/toy", json={"representation": {"library": "minilm"}})
    assert _files(services) == (_sha256(GRAPH), _sha256(TOKENIZER))
    digest = api.call("GET", "/toy")["representation"]["digest"]
    assert digest == entry.digest(_sha256(GRAPH), _sha256(TOKENIZER))
    api.call("PATCH", "/toy", json={"representation": {"library": None}})
    assert _files(services) == (None, None)


def _files(services: Services) -> tuple[str | None, str | None]:
    """Return the digests of the files that a worker would read for the only model."""
    with services.database.reading() as session:
        model = session.scalars(select(Model)).one()
        declaration = Manifest.model_validate(model.manifest).representation
        assert declaration is not None
        files = files_of(session, model.id, declaration)
    return (
        files.graph.sha256 if files.graph else None,
        files.tokenizer.sha256 if files.tokenizer else None,
    )
