"""`lethe model init` and `lethe model validate`: write a manifest, and check it with its files."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lethe.cli.context import CommandContext, UsageError, command
from lethe.cli.exit_status import ExitStatus
from lethe.cli.table_options import (
    ClassNames,
    FeatureColumns,
    LabelColumn,
    SubjectColumn,
    TableConverter,
    TableOptions,
    name_parts,
)
from lethe.cli.tables import count

if TYPE_CHECKING:
    from lethe.manifest import Manifest

FAMILIES = {
    "softmax": "classification into two or more classes",
    "logistic": "classification into two classes, with a single score",
    "ridge": "regression with the squared error",
    "mlp": "a small neural network for classification",
}
INPUT_FILE = {"exists": True, "dir_okay": False, "readable": True, "metavar": "FILE"}
ManifestFile = Annotated[
    Path,
    typer.Argument(
        exists=True, dir_okay=False, readable=True, metavar="MANIFEST", help="Manifest, as JSON or TOML."
    ),
]
_TEMPLATE = """\
# The manifest of a model. Check it with:  lethe model validate {name} --data FILE

# {family_help}
family = {family}
# The number of features of a row.
width = {width}
{classes}# λ, the strength of the regularisation, in the mean loss plus λ/2 ‖w‖². It applies to the bias too.
# A LogisticRegression of scikit-learn with the parameter C, fitted on n rows, has λ = 1 / (C n).
# Choose it without looking at rows that can be erased: `lethe model advise` uses the holdout alone.
lambda = {lam}
# Whether a constant feature is added, so that the model has a bias.
bias = true
{network}
# These declarations are printed on certificates. Nothing here may depend on rows that can be erased.
[origins]
# How the features were computed.
features = {features}
# Where λ, scaling constants and the figures of the policy come from.
constants = {constants}
# Where the means and variances come from if the features are standardised: "none" or "public data".
# standardisation = "none"

[policy]
# ε and δ of one release. A smaller ε gives more privacy and needs more noise.
epsilon = {epsilon}
delta = {delta}
# Δ*, the distance to the retrained model that every release must be certified to be within.
# The noise grows with it: σ is proportional to Δ*.
target_distance = {target_distance}
# ε of all releases together. When it is used up, the model is retrained.
lifetime_epsilon = {lifetime_epsilon}
# A batch is sealed when this many people wait, or when the oldest request is this old.
batch_subjects = 100
batch_age_seconds = 3600.0
# What happens if a release cannot be certified: "retrain", or "fail" to hold the batch for a decision.
fallback = "retrain"
"""


@command
def init(
    context: CommandContext,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", dir_okay=False, help="The manifest to write, a .toml file."),
    ] = Path("manifest.toml"),
    family: Annotated[
        str | None,
        typer.Option(metavar="FAMILY", help=f"The family: {', '.join(FAMILIES)}."),
    ] = None,
    width: Annotated[
        int | None, typer.Option(metavar="NUMBER", min=1, help="The number of features of a row.")
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option(metavar="NUMBER", min=2, help="The number of classes, for softmax and mlp."),
    ] = None,
    hidden: Annotated[
        str | None,
        typer.Option(metavar="WIDTHS", help="The widths of the hidden layers of an mlp, such as 64,32."),
    ] = None,
    lam: Annotated[
        float | None, typer.Option("--lambda", metavar="NUMBER", help="λ, the regularisation.")
    ] = None,
    features: Annotated[
        str | None,
        typer.Option("--features-origin", metavar="WORDS", help="How the features were computed."),
    ] = None,
    constants: Annotated[
        str | None,
        typer.Option("--constants-origin", metavar="WORDS", help="Where λ and the policy come from."),
    ] = None,
    epsilon: Annotated[float, typer.Option(metavar="NUMBER", help="ε of one release.")] = 1.0,
    delta: Annotated[float, typer.Option(metavar="NUMBER", help="δ of one release.")] = 1e-5,
    target_distance: Annotated[
        float, typer.Option(metavar="NUMBER", help="Δ*, the distance to the retrained model.")
    ] = 0.01,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Write a manifest with comments that explain every field.

    What is not passed as an option is asked for, if a person sits at the terminal.
    """
    if file.exists() and not force:
        raise UsageError(f"{file} exists already; choose another name, or pass --force to replace it")
    if file.suffix != ".toml":
        raise UsageError(f"{file} is not a name for a TOML file; choose one that ends in .toml")
    answers = _ask_for_missing(
        family=family,
        width=width,
        classes=classes,
        hidden=hidden,
        lam=lam,
        features=features,
        constants=constants,
    )
    figures = {"epsilon": epsilon, "delta": delta, "target_distance": target_distance}
    text = _compose(file, answers | figures | {"lifetime_epsilon": max(8.0, epsilon)})
    _refuse_problems(text)
    file.write_text(text, encoding="utf-8")
    context.show({"file": file}, f"Wrote {file}.")
    context.note(f"Read it, edit it, then run: lethe model validate {file} --data FILE")


@command
def validate(
    context: CommandContext,
    manifest: ManifestFile,
    data: Annotated[
        list[Path] | None,
        typer.Option(**INPUT_FILE, help="Training data as Parquet or CSV. Repeat it for more files."),
    ] = None,
    holdout: Annotated[
        list[Path] | None,
        typer.Option(
            **INPUT_FILE, help="Rows for evaluation only, as Parquet or CSV. Repeat it for more files."
        ),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(**INPUT_FILE, help="Trained weights as safetensors.")
    ] = None,
    anchor: Annotated[Path | None, typer.Option(**INPUT_FILE, help="Public anchor as safetensors.")] = None,
    features: FeatureColumns = None,
    subject: SubjectColumn = None,
    label: LabelColumn = None,
    classes: ClassNames = None,
) -> int | None:
    """Check a manifest and its files on this machine, and list every problem. Nothing is uploaded.

    The exit status is 1 if there are problems. Registration checks more: representations, and whether the
    model can be certified.
    """
    document = read_manifest(manifest)
    problems, parsed = _check_manifest(context, manifest, document)
    rows = 0
    if parsed is not None:
        found, rows = _check_files(
            parsed, data or (), holdout or (), TableOptions(features, subject, label, classes)
        )
        problems += found
        problems += [
            f"{file}: {problem}"
            for file in (weights, anchor)
            if file is not None
            for problem in _weights_problems(file, parsed)
        ]
    elif data or holdout or weights or anchor:
        context.note("The files are checked when the manifest has no more problems.")
    if problems:
        heading = f"{count(len(problems), 'problem', 'problems')} found:"
        context.show({"problems": problems}, heading, *(f"- {problem}" for problem in problems))
        return ExitStatus.NO
    checked = f"the manifest and {count(rows, 'row', 'rows')}" if rows else "the manifest"
    context.show({"problems": [], "rows": rows}, f"No problem found in {checked}.")
    return None


def read_manifest(path: Path) -> Mapping[str, Any]:
    """Read a manifest, or a whole request body that contains one."""
    from lethe.certificate.documents import read_toml_or_json

    document = read_toml_or_json(path)
    manifest = document.get("manifest", document) if isinstance(document, dict) else None
    if not isinstance(manifest, dict):
        raise UsageError(f"{path} contains no manifest; to write one, run `lethe model init`")
    return manifest


def _check_manifest(
    context: CommandContext, path: Path, document: Mapping[str, Any]
) -> "tuple[list[str], Manifest | None]":
    """Return the problems of a manifest. If there are none, also return the manifest."""
    from lethe.client.representations import complete_manifest, unfinished_library
    from lethe.manifest import BUILT_IN_FAMILIES, Manifest
    from lethe.manifest_check import manifest_problems

    if (library := unfinished_library(document)) is not None:
        document = complete_manifest(document, context.api.representations.get(library))
    problems = [f"{path}: {problem}" for problem in manifest_problems(document)]
    if problems:
        return problems, None
    manifest = Manifest.model_validate(document)
    if manifest.family not in BUILT_IN_FAMILIES:
        context.note(f"The family {manifest.family} is not built in. The service needs a plug-in for it.")
    return [], manifest


def _check_files(
    manifest: "Manifest", data: Sequence[Path], holdout: Sequence[Path], options: TableOptions
) -> tuple[list[str], int]:
    """Return the problems of all tables, and how many rows of training data they have."""
    from lethe.integrations.dataset_check import ExpectedRows, check_rows
    from lethe.integrations.errors import BadTable

    expected = ExpectedRows.of(manifest)
    problems: list[str] = []
    rows = 0
    with TemporaryDirectory(prefix="lethe-") as scratch:
        converter = TableConverter(Path(scratch), options)
        for files, is_holdout in ((data, False), (holdout, True)):
            for part, path in name_parts(files).items():
                try:
                    parquet = converter.convert(path, part, holdout=is_holdout)
                except BadTable as error:
                    problems.append(str(error))
                    continue
                checked = check_rows(parquet, expected, holdout=is_holdout)
                problems += [f"{path}: {problem}" for problem in checked.problems]
                rows += 0 if is_holdout else checked.rows
    return problems, rows


def _weights_problems(file: Path, manifest: "Manifest") -> list[str]:
    from lethe.integrations.dataset_check import weights_problems

    return weights_problems(file, manifest)


def _ask_for_missing(**answers: Any) -> dict[str, Any]:
    """Ask a person for what no option says. Without a person, name every option that is missing."""
    missing = list(_missing(answers))
    if missing and not sys.stdin.isatty():
        raise UsageError(f"`lethe model init` needs {', '.join(missing)}, because nobody can be asked")
    if answers["family"] is None:
        for name, text in FAMILIES.items():
            typer.echo(f"  {name:10}{text}", err=True)
        answers["family"] = typer.prompt("Family", default="softmax", err=True)
    if answers["family"] not in FAMILIES:
        raise UsageError(
            f"`lethe model init` knows the families {', '.join(FAMILIES)}, but not {answers['family']}; "
            "write the manifest of another family by hand"
        )
    questions = {
        "width": ("Number of features of a row", int),
        "classes": ("Number of classes", int),
        "hidden": ("Widths of the hidden layers, such as 64,32", str),
        "lam": ("λ, the strength of the regularisation, such as 0.01", float),
        "features": ("How were the features computed?", str),
        "constants": ("Where do λ and the policy come from?", str),
    }
    for name in _needed(answers["family"]):
        if answers[name] is None:
            answers[name] = _ask(*questions[name])
    return answers


def _ask(question: str, kind: Callable[[str], Any]) -> Any:
    """Ask until the answer is of the right kind."""
    names: dict[Any, str] = {int: "a whole number", float: "a number"}
    while True:
        try:
            return kind(typer.prompt(question, err=True))
        except ValueError:
            typer.echo(f"Please write {names.get(kind, 'something else')}.", err=True)


def _needed(family: str | None) -> Iterator[str]:
    """Yield the answers that a family needs, besides its name."""
    yield "width"
    if family in ("softmax", "mlp"):
        yield "classes"
    if family == "mlp":
        yield "hidden"
    yield from ("lam", "features", "constants")


def _missing(answers: Mapping[str, Any]) -> Iterator[str]:
    options = {"lam": "--lambda", "features": "--features-origin", "constants": "--constants-origin"}
    for name in ("family", *_needed(answers["family"])):
        if answers[name] is None:
            yield options.get(name, f"--{name}")


def _compose(file: Path, answers: Mapping[str, Any]) -> str:
    family = answers["family"]
    classes = "" if "classes" not in set(_needed(family)) else _line("classes", answers["classes"])
    values = {name: _toml(value) for name, value in answers.items()}
    return _TEMPLATE.format_map(
        values
        | {
            "name": file.name,
            "family_help": f"{family}: {FAMILIES[family]}.",
            "classes": f"# The number of classes. Labels are 0, 1, … in this order.\n{classes}"
            if classes
            else "",
            "network": _network(answers["hidden"]) if family == "mlp" else "",
        }
    )


def _network(hidden: str) -> str:
    words = [word.strip() for word in hidden.split(",")]
    if not all(word.isdecimal() for word in words):
        raise UsageError(f"--hidden must be whole numbers with commas, such as 64,32, but it is {hidden}")
    return f"\n[network]\n# The widths of the hidden layers.\nhidden = [{', '.join(words)}]\n"


def _line(name: str, value: Any) -> str:
    return f"{name} = {_toml(value)}\n"


def _toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _refuse_problems(text: str) -> None:
    """Refuse to write a manifest that the service would refuse."""
    import tomllib

    from lethe.manifest_check import manifest_problems

    if problems := manifest_problems(tomllib.loads(text)):
        raise UsageError(f"this is not a manifest yet: {'; '.join(problems)}")
