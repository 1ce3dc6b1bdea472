"""`lethe model` and `lethe download`."""

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lethe.cli.batches import batch_details
from lethe.cli.context import CommandContext, Timeout, UsageError, as_plain_data, command
from lethe.cli.exit_status import ExitStatus
from lethe.cli.manifests import INPUT_FILE, ManifestFile, init, read_manifest, validate
from lethe.cli.names import ModelName, check_model_name
from lethe.cli.policies import policy
from lethe.cli.progress import describe_registration, registration_progress, transfer_bars
from lethe.cli.table_options import (
    ClassNames,
    FeatureColumns,
    LabelColumn,
    SubjectColumn,
    TableOptions,
    canonical_files,
)
from lethe.cli.tables import count, details, format_size, table

if TYPE_CHECKING:
    from lethe.client.responses import AdviceResult, Model, Policy, Version

model = typer.Typer(help="Register models, look after them and retire them.", no_args_is_help=True)
model.command("init")(init)
model.command("validate")(validate)
Data = Annotated[
    list[Path] | None,
    typer.Option(**INPUT_FILE, help="Training data as Parquet or CSV. Repeat it for more files."),
]
Holdout = Annotated[
    list[Path] | None,
    typer.Option(**INPUT_FILE, help="Rows for evaluation only, as Parquet or CSV. Repeat it for more files."),
]
Weights = Annotated[
    Path | None,
    typer.Option(**INPUT_FILE, help="Trained weights as safetensors. Without them, the service trains."),
]
Anchor = Annotated[
    Path | None,
    typer.Option(**INPUT_FILE, help="Public anchor as safetensors, shaped like the weights. Default: zero."),
]

Graph = Annotated[
    Path | None,
    typer.Option(
        "--representation",
        **INPUT_FILE,
        help="Graph of the representation that the manifest declares, as ONNX.",
    ),
]
Tokenizer = Annotated[
    Path | None, typer.Option(**INPUT_FILE, help="The tokenizer.json of a representation of text.")
]


@model.command("register")
@command
def register(
    context: CommandContext,
    name: ModelName,
    manifest: ManifestFile,
    data: Data = None,
    holdout: Holdout = None,
    weights: Weights = None,
    anchor: Anchor = None,
    representation: Graph = None,
    tokenizer: Tokenizer = None,
    features: FeatureColumns = None,
    subject: SubjectColumn = None,
    label: LabelColumn = None,
    classes: ClassNames = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the model is ready or rejected.")] = False,
    timeout: Timeout = None,
) -> None:
    """Create a model, upload its files and validate it.

    Each part of the data is named after its file. A CSV file, and a table with one column per feature, needs
    --features. If the upload is interrupted, run the same command again to
    resume it. Without --data, the model is created but not validated. If the manifest's `representation`
    names an entry of the library, the rest of it may be left out.
    """
    document, models = read_manifest(manifest), context.api.models
    options = TableOptions(features, subject, label, classes)
    single_files = (
        (weights, models.upload_weights),
        (anchor, models.upload_anchor),
        (representation, models.upload_representation),
        (tokenizer, models.upload_tokenizer),
    )
    with canonical_files(data or (), holdout or (), options) as (parts, holdout_parts):
        _create_or_update(context, name, document)
        with transfer_bars(context) as add_bar:
            for part, path in parts.items():
                models.upload_part(name, part, path, on_progress=add_bar(part))
            for part, path in holdout_parts.items():
                models.upload_holdout(name, part, path, on_progress=add_bar(part))
            for file, upload in single_files:
                if file is not None:
                    upload(name, file, on_progress=add_bar(file.name))
    result = models.validate(name) if data else models.get(name)
    if wait and data:
        context.note("Waiting for the worker …")
        with registration_progress(context) as show_progress:
            result = models.wait_ready(name, timeout=timeout, on_change=show_progress)
    context.show(result, _model_details(result))


@model.command("list")
@command
def list_models(
    context: CommandContext,
    most: Annotated[
        int, typer.Option("--most", metavar="NUMBER", min=1, help="List at most this many models.")
    ] = 100,
) -> None:
    """List models, newest first."""
    models = list(context.api.models.list(limit=most))
    columns = ("Name", "State", "Family", "ε", "Δ*", "Generation", "People waiting", "Created")
    rows = [
        (
            m.name,
            m.state,
            m.manifest.family,
            _epsilon_of(m),
            m.manifest.policy.target_distance,
            m.generation,
            m.waiting_subjects,
            m.created_at,
        )
        for m in models
    ]
    empty = "There are no models yet. To register one, run: lethe model register"
    context.show(models, table(columns, rows) if models else empty)


@model.command("show")
@command
def show(context: CommandContext, name: ModelName) -> None:
    """Show a model with its versions and its data."""
    current = context.api.models.get(name)
    versions, parts = context.api.versions.list(name), context.api.models.parts(name)
    context.show(
        {"model": current, "versions": versions, "dataset": parts},
        _model_details(current),
        table(
            ("Version", "State", "Size", "Certificate", "Published"),
            [(v.number, v.state, format_size(v.size), v.certificate_id, v.created_at) for v in versions],
        ),
        table(
            ("Part", "Role", "State", "Rows", "Size"),
            [(p.part, p.role, p.state, p.rows, format_size(p.size)) for p in parts],
        ),
    )


@model.command("advise")
@command
def advise(context: CommandContext, name: ModelName, timeout: Timeout = None) -> int | None:
    """Show the score and the cost to expect of several values of λ and Δ*, and which to choose.

    Run it before you validate the model, while λ can still be changed. Only holdout rows of people without
    training rows are used. A choice of λ or Δ* made after looking at rows that can be erased voids the
    assurance. The exit status is 1 if there is no advice.
    """
    context.note("Waiting for the worker …")
    report = context.api.models.advise(name, timeout=timeout)
    if (result := report.result) is None:
        context.show(report, details({"Model": name, "State": report.state, "Error": report.error}))
        return ExitStatus.NO
    summary = {
        "Model": name,
        "Basis": result.basis,
        "Rows": _describe_rows(result),
        "Recommendation": None
        if result.recommendation is None
        else _describe_choice(result.recommendation.lam, result.recommendation.target_distance),
        "Reason": result.recommendation and result.recommendation.reason,
        "Network": result.network and result.network.model_dump(),
    }
    warnings = [f"Warning: {text}" for text in result.warnings]
    context.show(report, *([_advice_table(result)] if result.cells else []), details(summary), *warnings)
    return None


@model.command("flush")
@command
def flush(
    context: CommandContext,
    name: ModelName,
    anyway: Annotated[
        bool,
        typer.Option("--anyway", help="Even if there are fewer people than the policy's smallest batch."),
    ] = False,
) -> None:
    """Seal a batch now, with everyone who is waiting."""
    result = context.api.models.flush(name, force=anyway)
    people = count(result.waiting_subjects, "person", "people")
    context.show(
        result, f"A batch of {people} is being sealed." if result.waiting_subjects else "Nobody is waiting."
    )


@model.command("append")
@command
def append(
    context: CommandContext,
    name: ModelName,
    data: Data = None,
    features: FeatureColumns = None,
    subject: SubjectColumn = None,
    label: LabelColumn = None,
    classes: ClassNames = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the new version is published.")] = False,
    timeout: Timeout = None,
) -> int | None:
    """Add rows to a registered model and publish its next version.

    Without --data, the parts that were uploaded since registration are added. If the upload is interrupted,
    run the same command again to resume it. The exit status is 1 if the batch fails or is put on hold.
    """
    options = TableOptions(features, subject, label, classes)
    with canonical_files(data or (), (), options) as (parts, _), transfer_bars(context) as add_bar:
        for part, path in parts.items():
            context.api.models.upload_part(name, part, path, on_progress=add_bar(part))
    result = context.api.models.append(name)
    if not wait:
        context.show(result, f"The rows are being added in the batch {result.batch_id}.")
        context.note(f"To follow it, run: lethe watch {result.batch_id}")
        return None
    context.note("Waiting for the worker …")
    batch = context.api.batches.wait(result.batch_id, timeout=timeout)
    context.show(batch, batch_details(batch))
    return None if batch.state == "completed" else ExitStatus.NO


model.add_typer(policy, name="policy")


@model.command("retire")
@command
def retire(
    context: CommandContext,
    name: ModelName,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete a model's data and weights for good. Its certificates stay."""
    if not yes:
        _confirm_retirement(name)
    retired = context.api.models.retire(name)
    context.show(retired, f"Retired {name}. Its data and weights are deleted, its certificates stay.")


def _confirm_retirement(name: str) -> None:
    if not sys.stdin.isatty():
        raise UsageError(
            f"retiring {name} deletes its data and weights for good, and nobody can be asked; pass --yes"
        )
    typer.confirm(f"Delete the data and weights of {name} for good?", abort=True, err=True)


@command
def download(
    context: CommandContext,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Name of the model.", callback=check_model_name)
    ],
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", dir_okay=False, metavar="FILE", help="Target file. Default: MODEL-vVERSION.safetensors."
        ),
    ] = None,
    number: Annotated[
        int | None,
        typer.Option(
            "--version", metavar="NUMBER", min=0, help="Number of the version. Default: the current one."
        ),
    ] = None,
    pack: Annotated[
        Path | None,
        typer.Option("--pack", dir_okay=False, metavar="FILE", help="Also save the certificate's pack here."),
    ] = None,
) -> None:
    """Download a model's weights and check their digest.

    If the download is interrupted, run the same command again to resume it.
    """
    version = _find_version(context, model, number)
    number = number if version is None else version.number
    name = f"{model}.safetensors" if number is None else f"{model}-v{number}.safetensors"
    target = to or Path(name)
    with transfer_bars(context) as add_bar:
        context.api.versions.download(
            model, target, version="current" if number is None else number, on_progress=add_bar(target.name)
        )
    certificate_id = None if version is None else version.certificate_id
    if pack is not None:
        if certificate_id is None:
            raise UsageError("this version has no certificate: it is the model as registered, without noise")
        pack.write_bytes(context.api.certificates.pack(certificate_id).to_bytes())
    with target.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    size = target.stat().st_size
    result = {
        "model": model,
        "version": number,
        "file": target,
        "size": size,
        "sha256": sha256,
        "certificate_id": certificate_id,
        "pack": pack,
    }
    labels = {
        "Model": model,
        "Version": number,
        "File": target,
        "Size": format_size(size),
        "SHA-256": sha256,
        "Certificate": certificate_id,
        "Pack": pack,
    }
    context.show(result, details(labels))
    if pack is not None:
        context.note(f"To verify it, run: lethe verify {pack} --model {target}")


def _find_version(context: CommandContext, model: str, number: int | None) -> "Version | None":
    """Return the requested version, or None if the key may download weights but not list versions."""
    from lethe.client.errors import Forbidden

    try:
        versions = context.api.versions.list(model)
    except Forbidden:
        return None
    for version in versions:
        if version.number == number or (number is None and version.state == "current"):
            return version
    return None


def _create_or_update(context: CommandContext, name: str, manifest: Mapping[str, Any]) -> None:
    """Create a model. One that an interrupted run left unregistered gets this manifest instead."""
    from lethe.client.errors import Conflict
    from lethe.client.models import replacement_patch

    try:
        context.api.models.create(name, manifest)
    except Conflict:
        current = context.api.models.get(name)
        if current.state not in ("uploading", "rejected"):
            raise
        wanted = _complete_manifest(context, manifest)
        context.api.models.patch(name, replacement_patch(as_plain_data(current.manifest), wanted))


def _complete_manifest(context: CommandContext, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fill in the declaration of a representation that is named by its entry in the library only."""
    from lethe.client.representations import complete_manifest, unfinished_library

    library = unfinished_library(manifest)
    if library is None:
        return manifest
    return complete_manifest(manifest, context.api.representations.get(library))


def _model_details(model: "Model") -> Any:
    policy = model.manifest.policy
    report = model.report or {}
    warnings = report.get("warnings")
    return details(
        {
            "Model": model.name,
            "State": model.state,
            "Rejected because": model.reasons,
            "Family": model.manifest.family,
            "Representation": _describe_representation(model),
            "Registration": describe_registration(model.progress or {}),
            "Guarantee": _describe_guarantee(model),
            "Lifetime": _describe_lifetime(policy),
            "Noise": f"σ = {model.sigma:.3g}, for a target distance of Δ* = {policy.target_distance:g}",
            "Batches": _describe_batches(policy),
            "Waiting": count(model.waiting_subjects, "person", "people"),
            "Assurance": f"{'at most ' if model.assurance_notes else ''}{model.assurance}",
            "Which means": model.assurance_text,
            "Assurance notes": model.assurance_notes,
            "Registered with": _describe_registered_rows(report),
            "Advice": report.get("advice"),
            "Recommendation": _describe_advice(report),
            "Advice notes": report.get("advice_warnings"),
            "Warnings": [str(text) for text in warnings] if isinstance(warnings, list) else [],
        }
    )


def _epsilon_of(model: "Model") -> float | None:
    """Return the ε that a release guarantees, or None for an estimate, which guarantees nothing."""
    if model.manifest.policy.method == "retrain":
        return 0.0
    return None if model.assurance == "heuristic" else model.manifest.policy.epsilon


def _describe_guarantee(model: "Model") -> str:
    policy = model.manifest.policy
    if policy.method == "retrain":
        return "ε = 0: every release is a retraining without the erased people"
    figures = f"ε = {policy.epsilon:g}, δ = {policy.delta:g} for each release"
    if model.assurance == "heuristic":
        return f"none. The noise is chosen for {figures}, if the sampled constant is a bound"
    return f"{figures}, as its authors claim" if model.assurance == "as-published" else figures


def _describe_lifetime(policy: "Policy") -> str:
    then = "the model is retrained" if policy.fallback == "retrain" else "batches are put on hold"
    return f"ε ≤ {policy.lifetime_epsilon:g} in total, then {then}"


def _describe_representation(model: "Model") -> str | None:
    declaration, files = model.manifest.representation, model.representation
    if declaration is None:
        return None
    digest = "not complete yet" if files is None or files.digest is None else f"SHA-256 {files.digest}"
    library = f", library entry {declaration.library}" if declaration.library else ""
    return f"{declaration.origin} ({declaration.licence}){library}; {digest}"


def _advice_table(result: "AdviceResult") -> Any:
    chosen = result.recommendation
    classifier = result.cells[0].score_name == "micro_f1"
    rows = []
    for cell in result.cells:
        is_chosen = chosen is not None and (cell.lam, cell.target_distance) == (
            chosen.lam,
            chosen.target_distance,
        )
        note = "recommended" if is_chosen else "" if cell.reachable else "cannot be certified"
        score = f"{100 * cell.score:.2f} %" if classifier else cell.score
        rows.append((cell.lam, cell.target_distance, cell.sigma, score, cell.passes, cell.seconds, note))
    columns = ("λ", "Δ*", "σ", "Expected F1" if classifier else "Expected R²", "Passes", "Seconds", "")
    return table(columns, rows)


def _describe_rows(result: "AdviceResult") -> str | None:
    if result.fit_rows is None or result.score_rows is None:
        return None
    return f"{result.fit_rows} fitted, {result.score_rows} scored"


def _describe_choice(lam: float, target_distance: float) -> str:
    return f"λ = {lam:g}, Δ* = {target_distance:g}"


def _describe_advice(report: Mapping[str, Any]) -> str | None:
    """Return the recommendation of the registration report, or None if it has none."""
    choice = report.get("recommendation")
    if not isinstance(choice, dict):
        return None
    return f"{_describe_choice(choice['lambda'], choice['target_distance'])}. {choice['reason']}"


def _describe_registered_rows(report: Mapping[str, Any]) -> str | None:
    """Describe the rows at registration. The parts say how many there are now."""
    rows, people = report.get("rows"), report.get("subjects")
    if rows is None or people is None:
        return None
    return f"{count(rows, 'row', 'rows')} of {count(people, 'person', 'people')}"


def _describe_batches(policy: "Policy") -> str:
    smallest = policy.min_batch_subjects or min(10, policy.batch_subjects)
    return (
        f"sealed at {count(policy.batch_subjects, 'person', 'people')} or after "
        f"{policy.batch_age_seconds:g} s; with fewer than {count(smallest, 'person', 'people')}, only before "
        "a deadline or with --anyway"
    )
