"""`lethe model …`: register, list, show."""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from client.commands import tables
from client.commands.session import Session, Timeout, Unusable, verb
from client.commands.transfers import bars

if TYPE_CHECKING:
    from client.answers import Model, Policy

model = typer.Typer(help="Models: register, list, show, flush.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="Name of the model.")]
Files = Annotated[
    list[Path] | None,
    typer.Option(exists=True, dir_okay=False, readable=True, help="Parquet; may be given several times."),
]
File = Annotated[
    Path | None, typer.Option(exists=True, dir_okay=False, readable=True, help="As safetensors.")
]


@model.command("register")
@verb
def register(
    session: Session,
    name: Name,
    manifest: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="Manifest, JSON or TOML.")
    ],
    data: Files = None,
    holdout: Files = None,
    weights: File = None,
    anchor: File = None,
    wait: Annotated[bool, typer.Option("--wait", help="Until it is ready or rejected.")] = False,
    timeout: Timeout = None,
) -> None:
    """Describe a model, send its files, have it validated.

    A part is named after its file. Broken off, the same command goes on where it was. Without --data the
    model is only described.
    """
    _describe(session, name, _manifest(manifest))
    models = session.api.models
    with bars(session) as bar:
        for part, path in _parts(data or ()).items():
            models.upload_part(name, part, path, tell=bar(path.name))
        for part, path in _parts(holdout or ()).items():
            models.upload_holdout(name, part, path, tell=bar(path.name))
        if weights is not None:
            models.upload_weights(name, weights, tell=bar(weights.name))
        if anchor is not None:
            models.upload_anchor(name, anchor, tell=bar(anchor.name))
    found = models.validate(name) if data else models.show(name)
    if wait and data:
        session.note("Waiting for the worker …")
        found = models.wait_ready(name, timeout=timeout)
    session.show(found, _shown(found))


@model.command("list")
@verb
def list_models(
    session: Session, most: Annotated[int, typer.Option("--most", min=1, help="Newest first.")] = 100
) -> None:
    """List the models."""
    found = list(session.api.models.list(most=most))
    columns = ("name", "state", "family", "ε", "Δ*", "generation", "waiting", "created")
    entries = [
        (
            each.name,
            each.state,
            each.manifest.family,
            each.manifest.policy.epsilon,
            each.manifest.policy.target_distance,
            each.generation,
            each.waiting_subjects,
            each.created_at,
        )
        for each in found
    ]
    session.show(found, tables.rows(columns, entries) if found else "No models yet: `lethe model register`.")


@model.command("show")
@verb
def show(session: Session, name: Name) -> None:
    """Show a model, its versions and its data."""
    found = session.api.models.show(name)
    versions, parts = session.api.versions.list(name), session.api.models.holdings(name)
    session.show(
        {"model": found, "versions": versions, "dataset": parts},
        _shown(found),
        tables.rows(
            ("version", "state", "size", "certificate", "published"),
            [(v.number, v.state, tables.size(v.size), v.certificate_id, v.created_at) for v in versions],
        ),
        tables.rows(
            ("part", "role", "state", "rows", "size"),
            [(p.part, p.role, p.state, p.rows, tables.size(p.size)) for p in parts],
        ),
    )


@model.command("flush")
@verb
def flush(
    session: Session,
    name: Name,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Also with fewer people than the policy's smallest batch.")
    ] = False,
) -> None:
    """Seal a batch of everyone who waits, now."""
    sealed = session.api.models.flush(name, force=anyway)
    people = "1 person" if sealed.waiting_subjects == 1 else f"{sealed.waiting_subjects} people"
    session.show(
        sealed, f"A batch of {people} is being sealed." if sealed.waiting_subjects else "Nobody waits."
    )


def _describe(session: Session, name: str, manifest: Mapping[str, Any]) -> None:
    """Create it; one that is not registered yet, left by a run that broke off, is brought up to date."""
    from client.errors import Conflict

    try:
        session.api.models.create(name, manifest)
    except Conflict:
        if session.api.models.show(name).state not in ("uploading", "rejected"):
            raise
        session.api.models.patch(name, manifest)


def _manifest(path: Path) -> Mapping[str, Any]:
    """The manifest itself, or a whole request with one in it."""
    try:
        text = path.read_text()
        found = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except ValueError as problem:
        raise Unusable(
            f"{path} cannot be read as {'TOML' if path.suffix == '.toml' else 'JSON'}: {problem}"
        ) from None
    if not isinstance(found, dict):
        raise Unusable(f"{path} holds no manifest")
    inner = found.get("manifest", found)
    if not isinstance(inner, dict):
        raise Unusable(f"{path} holds no manifest")
    return inner


def _parts(files: Sequence[Path]) -> dict[str, Path]:
    parts: dict[str, Path] = {}
    for path in files:
        name = re.sub(r"[^a-z0-9]", "", path.stem.lower())[:32] or "part"
        if name in parts:
            raise Unusable(
                f"{parts[name].name} and {path.name} would both become the part {name}; rename one"
            )
        parts[name] = path
    return parts


def _shown(found: "Model") -> Any:
    policy = found.manifest.policy
    measured = found.report or {}
    return tables.facts(
        {
            "model": found.name,
            "state": found.state,
            "reasons": found.reasons,
            "family": found.manifest.family,
            "guarantee": f"ε = {policy.epsilon:g}, δ = {policy.delta:g} of each release",
            "lifetime": f"ε ≤ {policy.lifetime_epsilon:g}, then it retrains",
            "noise": f"σ = {found.sigma:.3g}, target distance Δ* = {policy.target_distance:g}",
            "batches": _batches(policy),
            "waiting": "1 person" if found.waiting_subjects == 1 else f"{found.waiting_subjects} people",
            "assurance": f"{found.assurance}{' at most' if found.assurance_notes else ''}",
            "because": found.assurance_notes,
            "rows": measured.get("rows"),
            "subjects": measured.get("subjects"),
            "advice": measured.get("advice"),
            "warnings": _texts(measured.get("warnings")),
        }
    )


def _batches(policy: "Policy") -> str:
    few = policy.min_batch_subjects or min(10, policy.batch_subjects)
    return (
        f"of {policy.batch_subjects} people, or after {policy.batch_age_seconds:g} s; with fewer than {few} "
        "only for a deadline or by --anyway"
    )


def _texts(found: Any) -> Iterable[str]:
    return [str(text) for text in found] if isinstance(found, list) else []
