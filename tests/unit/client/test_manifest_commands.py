"""`lethe model init` writes a manifest that the service accepts; `validate` lists every problem at once."""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from lethe.cli.main import app
from lethe.manifest import Manifest
from lethe.manifest_check import manifest_problems

FLAGS = ("--features-origin", "raw pixels", "--constants-origin", 'chosen "before" the data')
SOFTMAX = ("--family", "softmax", "--width", "2", "--classes", "3", "--lambda", "0.01", *FLAGS)
GOOD: dict[str, Any] = {
    "family": "softmax",
    "width": 2,
    "classes": 3,
    "lambda": 0.01,
    "origins": {"features": "raw", "constants": "chosen"},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _run(*words: object, code: int = 0, stdin: str | None = None) -> Result:
    done = CliRunner().invoke(app, [str(word) for word in words], input=stdin)
    assert done.exit_code == code, (done.exit_code, done.stdout, done.stderr, done.exception)
    return done


def _rows(name: str, features: Any = None, **columns: Any) -> Path:
    values: dict[str, Any] = {
        "subject_id": pa.array(["a", "b"]),
        "label": pa.array([0, 2]),
        "features": features
        if features is not None
        else pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float64(), 2)),
    }
    table = {key: value for key, value in (values | columns).items() if value is not None}
    pq.write_table(pa.table(table), name)
    return Path(name)


@pytest.mark.parametrize(
    "flags",
    [
        SOFTMAX,
        ("--family", "logistic", "--width", "4", "--lambda", "1", *FLAGS),
        ("--family", "ridge", "--width", "4", "--lambda", "1e-3", "--epsilon", "20", *FLAGS),
        (
            *("--family", "mlp", "--width", "4", "--classes", "2", "--hidden", "8, 4"),
            *("--lambda", "0.1", *FLAGS),
        ),
    ],
    ids=lambda flags: str(flags[1]),
)
def test_init_writes_a_commented_manifest_that_the_service_accepts(flags: tuple[str, ...]) -> None:
    _run("model", "init", *flags)
    text = Path("manifest.toml").read_text()
    manifest = Manifest.model_validate(tomllib.loads(text))
    assert manifest.family == flags[1]
    assert manifest.origins.constants == 'chosen "before" the data'
    assert text.count("\n# ") > 8
    assert "No problem found in the manifest." in _run("model", "validate", "manifest.toml").stdout


def test_init_asks_a_person_for_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        """Standard input that says it is a terminal."""

        def __init__(self, stream: Any) -> None:
            self._stream = stream

        def isatty(self) -> bool:
            return True

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stream, name)

    # CliRunner replaces standard input when it starts, so the module sees a wrapper of whatever is there.
    class Module:
        def __getattr__(self, name: str) -> Any:
            return Terminal(sys.stdin) if name == "stdin" else getattr(sys, name)

    monkeypatch.setattr("lethe.cli.manifests.sys", Module())
    answers = "softmax\n64\nten\n10\n0.01\nraw pixels\nchosen before\n"
    done = _run("model", "init", "asked.toml", "--epsilon", "2", stdin=answers)
    assert "Please write a whole number." in done.stderr
    assert done.stderr.count("Number of classes") == 2
    manifest = Manifest.model_validate(tomllib.loads(Path("asked.toml").read_text()))
    assert (manifest.width, manifest.classes, manifest.policy.epsilon) == (64, 10, 2.0)


def test_init_replaces_a_file_only_with_force() -> None:
    _run("model", "init", *SOFTMAX)
    _run("model", "init", *SOFTMAX, code=2)
    _run("model", "init", *SOFTMAX, "--lambda", "0.5", "--force")
    assert tomllib.loads(Path("manifest.toml").read_text())["lambda"] == 0.5


def test_every_problem_of_a_manifest_is_listed_at_once() -> None:
    document = GOOD | {
        "width": 0,
        "lamda": 1,
        "classes": None,
        "network": {"hidden": [3]},
        "origins": {"features": "raw"},
        "policy": {
            "epsilon": 2,
            "lifetime_epsilon": 1,
            "min_batch_subjects": 200,
            "delta": "small",
            "quality_gate": {"min_f1": 101},
        },
    }
    Path("m.json").write_text(json.dumps(document))
    assert _run("model", "validate", "m.json", "--json", code=1).stdout.count("m.json: ") == 9
    assert json.loads(_run("model", "validate", "m.json", "--json", code=1).stdout)["problems"] == [
        "m.json: lamda: unknown field; did you mean lambda?",
        "m.json: width: must be at least 1",
        "m.json: origins.constants: is required",
        "m.json: policy.delta: must be a number",
        "m.json: policy.quality_gate.min_f1: must be at most 100",
        "m.json: policy: lifetime_epsilon is smaller than epsilon: not even one release would fit",
        "m.json: policy: min_batch_subjects is larger than batch_subjects: a full batch would be too small "
        "to seal",
        "m.json: classes is needed for softmax and networks, and for no other family",
        "m.json: a softmax model has no network",
    ]
    assert "9 problems found:" in _run("model", "validate", "m.json", code=1).stdout


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"family": "mlp", "network": {"hidden": [4]}},
        {"family": "ridge", "classes": None},
        {"policy": {"epsilon": 0}},
        {"policy": {"quality_gate": {"min_f1": 80.0}}},
        {"policy": 3},
        {"lambda": "strong"},
        {"family": "resnet18", "network": {"image": [1, 1, 2], "base_width": 4, "groups": 3}},
    ],
    ids=str,
)
def test_the_check_accepts_exactly_what_the_service_accepts(change: dict[str, Any]) -> None:
    document = GOOD | change
    try:
        Manifest.model_validate(document)
    except ValueError:
        assert manifest_problems(document)
    else:
        assert manifest_problems(document) == []


def test_good_files_are_counted_and_accepted() -> None:
    Path("m.json").write_text(json.dumps(GOOD))
    _rows("train.parquet")
    _rows("variable.parquet", features=pa.array([[1.0, 2.0], [3.0, 4.0]]))
    _rows("holdout.parquet", subject_id=None)
    words = ("--data", "train.parquet", "--data", "variable.parquet", "--holdout", "holdout.parquet")
    done = _run("model", "validate", "m.json", *words)
    assert done.stdout == "No problem found in the manifest and 4 rows.\n"


def test_every_problem_of_the_files_is_listed_with_row_and_column() -> None:
    Path("m.json").write_text(json.dumps(GOOD))
    _rows(
        "rows.parquet",
        features=pa.array([[1.0, float("nan")], None], pa.list_(pa.float64(), 2)),
        label=pa.array([3, None]),
        subject_id=pa.array([None, "b"]),
    )
    _rows("names.parquet", subject_id=pa.array(["", "canary\t"]))
    _rows("lengths.parquet", features=pa.array([[1.0, 2.0], [3.0]]))
    _rows("types.parquet", label=pa.array(["x", "y"]), features=pa.array([1, 2]), subject_id=pa.array([1, 2]))
    _rows("width.parquet", features=pa.array([[1.0], [2.0]], pa.list_(pa.float64(), 1)), label=None)
    Path("not.parquet").write_text("not Parquet")
    files = ("rows", "names", "lengths", "types", "width", "not")
    words = [word for name in files for word in ("--data", f"{name}.parquet")]
    problems = json.loads(_run("model", "validate", "m.json", *words, "--json", code=1).stdout)["problems"]
    assert problems == [
        "rows.parquet: row 0, column subject_id: the value is missing",
        "rows.parquet: row 1, column label: the value is missing",
        "rows.parquet: row 0, column label: the value is not in 0 … 2",
        "rows.parquet: row 1, column features: the value is missing",
        "rows.parquet: row 0, column features: a value is missing, NaN or infinite",
        "names.parquet: row 0, column subject_id: the value must have 1 to 256 characters, none of them a "
        "control character (2 rows in total)",
        "lengths.parquet: row 1, column features: the row does not have 2 values",
        "types.parquet: the column subject_id must hold strings, not int64",
        "types.parquet: the column label must hold whole numbers, not string",
        "types.parquet: the column features must hold lists of floats, not int64",
        "width.parquet: the column label is missing",
        "width.parquet: the column features has 1 values per row, but the manifest says 2",
        "not.parquet: it is not a Parquet file, or it is damaged",
    ]


def test_weights_of_another_shape_are_found() -> None:
    Path("m.json").write_text(json.dumps(GOOD))
    header = {"weight": {"dtype": "F64", "shape": [3, 4], "data_offsets": [0, 96]}}
    raw = json.dumps(header).encode()
    Path("w.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(96))
    Path("bad.safetensors").write_bytes(b"no")
    words = ("model", "validate", "m.json", "--weights", "w.safetensors", "--anchor", "bad.safetensors")
    assert json.loads(_run(*words, "--json", code=1).stdout)["problems"] == [
        "w.safetensors: the tensor bias is missing",
        "w.safetensors: the tensor weight has the shape 3 × 4, not 3 × 2",
        "bad.safetensors: it is not a safetensors file",
    ]


def test_without_pyarrow_one_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("m.json").write_text(json.dumps(GOOD))
    data = _rows("train.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = _run("model", "validate", "m.json", "--data", data, code=2)
    assert done.stderr == (
        "lethe: checking Parquet files needs the package pyarrow. To install it, run `pip install pyarrow`, "
        "or leave out --data and --holdout to check the manifest alone.\n"
    )
