"""Collects from the code every field that leaves the model's own team."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from fastapi.routing import APIRoute
from pydantic import BaseModel

from app.gateway.auth.guard import Require
from app.gateway.auth.scopes import Scope
from app.gateway.certificates.endpoints import router
from lethe.certificate.keys import KeySet
from lethe.certificate.pack import Pack
from lethe.certificate.receipt import Receipt
from lethe.certificate.statement import Statement

ROOT = Path(__file__).parent.parent.parent
_LEVELS = frozenset({"debug", "info", "warning", "error", "critical", "exception"})


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted JSON paths of all fields of a model that contain no further model."""
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
    """Return the fields of a certificate."""
    return set(leaves(Statement))


def pack() -> set[str]:
    """Return the fields of a pack, except for evidence and receipt, which the team or the person adds."""
    return {path for path in leaves(Pack) if not path.startswith(("evidence.", "receipt.", "keys."))} | {
        f"keys.{path}" for path in leaves(KeySet)
    }


def receipt() -> set[str]:
    """Return the fields of a receipt."""
    return set(leaves(Receipt))


def api() -> set[str]:
    """Return the response fields of the endpoints that a key with `certificates:read` alone may call."""
    fields: set[str] = set()
    for route in router.routes:
        if isinstance(route, APIRoute) and _scope(route) == Scope.CERTIFICATES_READ:
            for model in _models(route.response_model):
                if model not in (Pack, KeySet):
                    fields |= {f"{route.path} {path}" for path in leaves(model)}
            if not list(_models(route.response_model)):
                fields.add(f"{route.path} body")
    return fields


def _scope(route: APIRoute) -> Scope | None:
    calls = [dependency.call for dependency in route.dependant.dependencies]
    return next((call.scope for call in calls if isinstance(call, Require)), None)


def webhooks() -> set[str]:
    """Return the keys in the data of every webhook event.

    The functions that make events are those whose return type names `EventType`.
    """
    tree = ast.parse((ROOT / "app/dispatcher/webhook_events.py").read_text())
    makers = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.returns and "EventType" in ast.unparse(node.returns)
    ]
    return {
        key.value
        for function in makers
        for node in ast.walk(function)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }


def metrics() -> set[str]:
    """Return the names of all metrics of the service."""
    return {
        node.value
        for path in (ROOT / "app").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value.startswith("lethe_") and node.value.replace("_", "").isalnum() and len(node.value) > 8
    }


def log_fields() -> set[str]:
    """Return the names of the values in all log lines."""
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
