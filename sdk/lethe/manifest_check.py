"""Every problem of a manifest or a policy at once, before anything is uploaded.

The service stops at the first rule about several fields that is broken, and checks no such rule while a field
is wrong. Here each rule is tried by itself, and one that needs a wrong field is skipped.
"""

import difflib
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from lethe.certificate.records import Record
from lethe.certificate.validation import validation_message
from lethe.manifest import Manifest


def manifest_problems(document: Mapping[str, Any]) -> list[str]:
    """Return every problem of a manifest, each as one line that starts with the field.

    >>> manifest_problems(
    ...     {"family": "softmax", "width": 0, "classes": 3, "lambda": 1, "policy": {"delta": 1}}
    ... )
    ['width: must be at least 1', 'origins: is required', 'policy.delta: must be at most 0.01']
    """
    return model_problems(Manifest, document)


def model_problems(model: type[BaseModel], document: Mapping[str, Any]) -> list[str]:
    """Return every problem of a document of this kind, each as one line that starts with the field."""
    problems = list(_check(model, document, "")[1])
    return problems or _whole(model, document)


def _whole(model: type[BaseModel], document: Mapping[str, Any]) -> list[str]:
    """Check the document as the service does, which decides."""
    try:
        model.model_validate(document)
    except ValidationError as error:
        return list(_describe(error, ""))
    return []


def _check(
    model: type[BaseModel], document: Mapping[str, Any], place: str
) -> tuple[dict[str, Any], list[str]]:
    """Return the values of the fields that are right, and the problems of the others and of all rules."""
    names = {field.alias or name: name for name, field in model.model_fields.items()}
    problems = [f"{place}{key}: {_unknown(key, names, model)}" for key in document if key not in names]
    values: dict[str, Any] = {}
    wrong: set[str] = set()
    for key, name in names.items():
        field = model.model_fields[name]
        if key not in document:
            if field.is_required():
                problems.append(f"{place}{key}: is required")
                wrong.add(name)
            continue
        value, found = _check_field(field, document[key], f"{place}{key}")
        problems += found
        if found:
            wrong.add(name)
        else:
            values[name] = value
    problems += [f"{place.rstrip('.')}: {text}" if place else text for text in _rules(model, values, wrong)]
    return values, problems


def _check_field(field: FieldInfo, value: Any, place: str) -> tuple[Any, list[str]]:
    inner = _inner_model(field.annotation)
    if inner is not None and isinstance(value, Mapping):
        values, problems = _check(inner, value, f"{place}.")
        return (None, problems) if problems else (inner.model_construct(**values), [])
    try:
        kind: Any = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        return TypeAdapter(kind).validate_python(value), []
    except ValidationError as error:
        return None, list(_describe(error, place))


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    """Return the model of a field whose value is a table. A strict record checks itself."""
    options = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    models = [kind for kind in options if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return models[0] if len(models) == 1 and not issubclass(models[0], Record) else None


def _rules(model: type[BaseModel], values: Mapping[str, Any], wrong: set[str]) -> Iterator[str]:
    """Try each rule about several fields. A rule that reads a wrong field cannot be tried."""
    instance = model.model_construct(**values)
    for name in wrong:
        instance.__dict__.pop(name, None)
    for rule in model.__pydantic_decorators__.model_validators.values():
        try:
            rule.func(instance)
        except (AttributeError, TypeError, AssertionError):
            continue
        except ValueError as error:
            yield str(error)


def _describe(error: ValidationError, place: str) -> Iterator[str]:
    for problem in error.errors(include_url=False, include_input=False):
        steps = (
            [place, *(str(step) for step in problem["loc"])] if place else [str(s) for s in problem["loc"]]
        )
        where = ".".join(steps)
        text = validation_message(problem)
        yield f"{where}: {text}" if where else text


def _unknown(key: object, names: Mapping[str, str], model: type[BaseModel]) -> str:
    for name, field in model.model_fields.items():
        inner = _inner_model(field.annotation)
        if inner is not None and key in inner.model_fields:
            return f"unknown field; did you mean {field.alias or name}.{key}?"
    close = difflib.get_close_matches(str(key), list(names), n=1)
    return f"unknown field; did you mean {close[0]}?" if close else "unknown field"
