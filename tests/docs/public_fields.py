"""Every field that leaves the model's own team, found in the code itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from fastapi.routing import APIRoute
from pydantic import BaseModel

from app.access.guard import Require
from app.access.scopes import Scope
from app.certificates.endpoints import router
from certificate.keys import KeySet
from certificate.pack import Pack
from certificate.receipt import Receipt
from certificate.statement import Statement

ROOT = Path(__file__).parent.parent.parent
_LEVELS = frozenset({"debug", "info", "warning", "error", "critical", "exception"})


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Dotted paths of the fields of a model that hold no further model, as they are spelled in JSON."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{field.alias or name}"
        inner = list(_models(field.annotation))
        if not inner:
            yield path
        for nested in inner:
            yield from leaves(nested, f"{path}.")


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and get_origin(annotation) is None:
        yield annotation
        return
    for part in get_args(annotation):
        yield from _models(part)


def certificate() -> set[str]:
    return set(leaves(Statement))


def pack() -> set[str]:
    """Without what the model's own team or the person adds: evidence and receipt."""
    return {path for path in leaves(Pack) if not path.startswith(("evidence.", "receipt.", "keys."))} | {
        f"keys.{path}" for path in leaves(KeySet)
    }


def receipt() -> set[str]:
    return set(leaves(Receipt))


def api() -> set[str]:
    """Answers of the endpoints that a key with `certificates:read` alone may call, by model and field."""
    found: set[str] = set()
    for route in router.routes:
        if isinstance(route, APIRoute) and _scope(route) == Scope.CERTIFICATES_READ:
            for model in _models(route.response_model):
                if model not in (Pack, KeySet):
                    found |= {f"{route.path} {path}" for path in leaves(model)}
            if not list(_models(route.response_model)):
                found.add(f"{route.path} body")
    return found


def _scope(route: APIRoute) -> Scope | None:
    calls = [dependency.call for dependency in route.dependant.dependencies]
    return next((call.scope for call in calls if isinstance(call, Require)), None)


def webhooks() -> set[str]:
    """Keys of the data of every event."""
    tree = ast.parse((ROOT / "app/webhooks/events.py").read_text())
    inside = ("_meaning", "_of_batch", "_published", "_completed")
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in inside]
    return {
        key.value
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }


def metrics() -> set[str]:
    """Names of every metric of our own."""
    return {
        node.value
        for path in (ROOT / "app").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value.startswith("lethe_") and node.value.replace("_", "").isalnum() and len(node.value) > 8
    }


def log_fields() -> set[str]:
    """Names of the values that any log line carries."""
    return {
        keyword.arg
        for folder in ("app", "worker")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _LEVELS
        and "log" in ast.unparse(node.func.value)
        for keyword in node.keywords
        if keyword.arg and keyword.arg != "exc_info"
    }


PLACES = {
    "Certificate": certificate,
    "Pack": pack,
    "Receipt": receipt,
    "API": api,
    "Webhooks": webhooks,
    "Metrics": metrics,
    "Log lines": log_fields,
}
