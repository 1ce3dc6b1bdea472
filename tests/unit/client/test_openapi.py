"""The client's response models equal the OpenAPI document of the gateway.

Every public method of the client is called with a transport that answers nothing, and with a parser that
records the request and the type that the client expects. The type is then compared with the schema of the
endpoint, which is found by method and path. The names of the schemas do not matter.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import httpx
import pytest
from pydantic import BaseModel, TypeAdapter

from app.core.settings import Settings
from app.gateway.main import create_app
from lethe import Lethe, Retry
from lethe.client import responses
from lethe.client.endpoints import EndpointGroup
from lethe.client.operations import listing, operation
from lethe.client.responses import Response

ARGUMENTS: dict[str, Any] = {
    "name": "m",
    "model": "m",
    "manifest": {},
    "change": {},
    "part": "p",
    "source": b"content",
    "file": "weights",
    "erasure_id": "e",
    "batch_id": "b",
    "certificate_id": "c",
    "evaluation_id": "v",
    "advice_id": "d",
    "audit_id": "a",
    "key_id": "k",
    "webhook_id": "w",
    "delivery_id": "y",
    "url": "https://hooks.example.com",
    "subjects": ["s"],
    "body": b"{}",
    "reason": "r",
    "index": 0,
    "old_size": 1,
    "scopes": [],
}
# These methods return bytes, a file or nothing, or a document that `lethe.certificate` parses on both sides.
WITHOUT_A_MODEL = {
    "models.delete_file",
    "models.download_representation",
    "models.download_tokenizer",
    "models.import_part",
    "models.import_representation",
    "models.import_tokenizer",
    "versions.download",
    "versions.signature",
    "certificates.get",
    "certificates.pack",
    "certificates.evidence",
    "certificates.verify",
    "log.tree_head",
    "log.keys",
    "webhooks.delete",
    "audit_log.export",
    "audit_log.heads",
}
# The client builds these itself: from several responses, and from an event stream.
BUILT_BY_THE_CLIENT = {"ErasureProgress", "Event"}
BASES = {"Response", "Report"}


@dataclass(frozen=True)
class Expectation:
    """The type that a method of the client expects from an endpoint."""

    name: str
    method: str
    path: str
    kind: Any


class Parsed(Exception):
    """Raised in place of parsing a response, with the request and the expected type."""


def _expectations() -> Iterator[Expectation]:
    for name, procedure in _operations():
        expectation = _expectation(name, procedure)
        if expectation is not None:
            yield expectation


def _operations() -> Iterator[tuple[str, Any]]:
    with Lethe("http://x") as lethe:
        groups = {name: value for name, value in vars(lethe).items() if isinstance(value, EndpointGroup)}
    for group_name, group in groups.items():
        for name, member in inspect.getmembers_static(type(group)):
            if isinstance(member, operation | listing):
                yield f"{group_name}.{name}", member.procedure


def _expectation(name: str, procedure: Any) -> Expectation | None:
    """Call a method of the client; return None if it does not parse a JSON response as a model."""
    group, method = name.split(".")

    def answer(request: httpx.Request) -> httpx.Response:
        # An upload starts by asking what has arrived. Nothing has, so it sends the file.
        nothing_uploaded = method.startswith("upload_") and method != "upload_status"
        return httpx.Response(404 if nothing_uploaded and request.method == "GET" else 200, content=b"")

    def record(response: httpx.Response, kind: Any) -> None:
        raise Parsed(response.request.method, response.request.url.path, kind)

    parameters = [*inspect.signature(procedure).parameters.values()][1:]
    required = {p.name: ARGUMENTS[p.name] for p in parameters if p.default is p.empty and p.name in ARGUMENTS}
    with pytest.MonkeyPatch.context() as patch:
        for module in ("endpoints", "transfers"):
            patch.setattr(f"lethe.client.{module}.parse", record)
        with Lethe("http://x", transport=httpx.MockTransport(answer), retry=Retry(times=0)) as lethe:
            call = getattr(getattr(lethe, group), method)
            if name in WITHOUT_A_MODEL:
                return None
            try:
                result = call(**required)
                list(result) if inspect.isgenerator(result) else None
            except Parsed as parsed:
                return Expectation(name, *parsed.args)
    raise AssertionError(f"{name} parsed no response: list it in WITHOUT_A_MODEL if that is right")


EXPECTATIONS = list(_expectations())


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app(Settings()).openapi()


@pytest.mark.parametrize("expected", EXPECTATIONS, ids=lambda expected: str(expected.name))
def test_a_method_expects_what_the_endpoint_returns(expected: Expectation, document: dict[str, Any]) -> None:
    own = TypeAdapter(expected.kind).json_schema(mode="validation")
    theirs = _alternatives(document, expected)
    mine = _shape(own, own)
    assert any(_differences(mine, _shape(schema, document)) == [] for schema in theirs), [
        _differences(mine, _shape(schema, document)) for schema in theirs
    ]


def test_every_response_model_comes_from_an_endpoint() -> None:
    reached = {model.__name__ for expected in EXPECTATIONS for model in _models(expected.kind)}
    defined = {
        name
        for name, value in vars(responses).items()
        if isinstance(value, type) and issubclass(value, Response)
    }
    assert defined - reached == BUILT_BY_THE_CLIENT | BASES


def test_a_difference_in_any_respect_is_noticed() -> None:
    server = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
        "required": ["a", "b"],
    }
    variants: list[dict[str, Any]] = [
        server | {"required": ["a"]},
        server | {"properties": server["properties"] | {"c": {"type": "string"}}},  # type: ignore[operator]
        server | {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
        server | {"properties": server["properties"] | {"a": {"type": "number"}}},  # type: ignore[operator]
        server | {"properties": server["properties"] | {"b": {"type": "string"}}},  # type: ignore[operator]
    ]
    assert _differences(_shape(server, server), _shape(server, server)) == []
    for variant in variants:
        assert _differences(_shape(variant, variant), _shape(server, server)) != []


def _alternatives(document: Mapping[str, Any], expected: Expectation) -> list[dict[str, Any]]:
    """Return the schemas of the endpoint's successful response.

    An upload has two: the last piece is answered with the file, every other piece (status 202) with the
    progress. FastAPI writes both below the first status.
    """
    operations = _operations_at(document, expected.path)
    successes = {
        status: response["content"]["application/json"]["schema"]
        for status, response in operations[expected.method.lower()]["responses"].items()
        if status.startswith("2") and "application/json" in response.get("content", {})
    }
    first = successes[min(successes)]
    others = [schema for status, schema in successes.items() if status != min(successes)]
    if "anyOf" not in first or not others:
        return [first]
    return [schema for schema in first["anyOf"] if schema not in others]


def _operations_at(document: Mapping[str, Any], path: str) -> dict[str, Any]:
    matches = [
        template
        for template in document["paths"]
        if re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template)), path)
    ]
    assert matches, f"the gateway has no {path}"
    operations: dict[str, Any] = document["paths"][min(matches, key=lambda template: template.count("{"))]
    return operations


def _shape(schema: Mapping[str, Any], document: Mapping[str, Any]) -> Any:
    """Reduce a schema to property names, requiredness, defaults, nullability and JSON types.

    Enumerations become strings: the client accepts states that it does not know.
    """
    if "$ref" in schema:
        target: Any = document
        for step in schema["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        return _shape(target, document)
    for union in ("anyOf", "oneOf"):  # one of several models that a field tells apart is written as oneOf
        if union in schema:
            return _union([_shape(alternative, document) for alternative in schema[union]])
    match schema.get("type"):
        case "object" if "properties" in schema:
            return {
                name: {
                    "required": name in schema.get("required", ()),
                    "default": inner.get("default"),
                    "shape": _shape(inner, document),
                }
                for name, inner in schema["properties"].items()
            }
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            return ("map", _shape(schema["additionalProperties"], document))
        case "object":
            return ("object",)
        case "array" if "prefixItems" in schema:
            return ("tuple", *(_shape(inner, document) for inner in schema["prefixItems"]))
        case "array":
            return ("array", _shape(schema["items"], document))
        case simple:
            return f"{simple} {schema['format']}" if "format" in schema else simple


def _union(shapes: list[Any]) -> Any:
    """Join alternatives; a free-form object includes every object with named properties."""
    if ("object",) in shapes:
        shapes = [shape for shape in shapes if not isinstance(shape, dict)]
    return ("any of", *sorted(shapes, key=repr))


def _differences(client: Any, server: Any, place: str = "") -> list[str]:
    if isinstance(client, dict) and isinstance(server, dict):
        differences = [f"{place}/{name}: only in the client" for name in client.keys() - server.keys()]
        differences += [f"{place}/{name}: only in the server" for name in server.keys() - client.keys()]
        for name in sorted(client.keys() & server.keys()):
            inner = f"{place}/{name}"
            if name == "shape":
                differences += _differences(client[name], server[name], place)
            else:
                differences += _differences(client[name], server[name], inner)
        return differences
    if isinstance(client, tuple) and isinstance(server, tuple) and len(client) == len(server):
        return [
            text
            for mine, theirs in zip(client, server, strict=True)
            for text in _differences(mine, theirs, place)
        ]
    if isinstance(client, str) and isinstance(server, str) and server.startswith(f"{client} "):
        return []  # the client may treat a value with a format, such as a cursor, as a plain string
    return [] if client == server else [f"{place}: {client} in the client, {server} in the server"]


def _models(kind: Any) -> set[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        inner = [_models(field.annotation) for field in kind.model_fields.values()]
        return {kind}.union(*inner)
    return set().union(*(_models(argument) for argument in get_args(kind)))
