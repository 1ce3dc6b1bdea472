"""A model card says what the certificate says, for golden packs of every format, and nothing else."""

import base64
import hashlib
import re
import shlex
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from typer.testing import CliRunner

from lethe import NotVerified, ReleaseUnavailable
from lethe.certificate.envelope import parse as parse_envelope
from lethe.certificate.onnx_file import OUTPUTS
from lethe.certificate.pack import AnyPack, read_pack
from lethe.certificate.statement import AnyStatement, parse
from lethe.certificate.verify import verify
from lethe.cli.main import app
from lethe.client.model_card import escape, render_card
from lethe.client.responses import Evaluation, Ledger, Version
from tests.unit.certificate.onnx_graphs import ROW, export, vector_graph
from tests.unit.certificate.representation_cases import certified

GOLDEN = Path(__file__).parents[2] / "golden"
PACKS = sorted(GOLDEN.glob("v*/*/pack.json"))
MODELS = [path for path in PACKS if not path.parent.name.startswith("discarded")]
EXPORTS = sorted((GOLDEN / "v2-onnx").glob("*/pack.json"))
SECTIONS = [
    "What this model is",
    "Certificate",
    "What ε, δ and σ mean here",
    "Unit of privacy",
    "Assurance and assumptions",
    "What is not covered",
    "Representation",
    "Lifetime budget",
    "How to verify it",
    "How to load it",
]


def name_of(path: Path) -> str:
    return f"{path.parts[-3]}-{path.parts[-2]}"


def read(path: Path) -> tuple[AnyPack, AnyStatement]:
    pack = read_pack(path.read_bytes())
    return pack, parse(parse_envelope(base64.b64decode(pack.envelope)).payload)


def header(card: str) -> dict[str, Any]:
    _, text, _ = card.split("---\n", 2)
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


def blocks(card: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", card, re.MULTILINE | re.DOTALL)


def save_tokenizer(path: Path) -> None:
    """Save a small tokenizer, because the golden export of texts comes without one."""
    tokenizer = Tokenizer(WordLevel({"?": 0, "text": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(path))


def as_evaluation(version: int, **more: Any) -> Evaluation:
    scores = {"loss": 0.25, "micro_f1": 0.9125, "rmse": None, "r_squared": None}
    result = {
        "rows": 60,
        "current": scores,
        "retrained": scores | {"micro_f1": 0.92},
        "delta_f1": None,
        "retraining": "from the anchor",
        "seconds": {"current": 1.0, "retrained": 2.0},
        "shift": None,
    }
    report = {
        "id": UUID(int=1),
        "model": "credit-scoring",
        "version": version,
        "state": "completed",
        "error": None,
        "created_at": datetime.now(UTC),
        "completed_at": None,
        "result": result,
    }
    return Evaluation.model_validate(report | more)


def as_ledger(releases_left: int | None) -> Ledger:
    return Ledger(
        model="credit-scoring",
        delta=1e-5,
        lifetime_epsilon=20,
        running_shift=0.3,
        running_epsilon=1.17,
        remaining_epsilon=18.8,
        releases_left=releases_left,
        entries=(),
    )


@pytest.mark.parametrize("path", MODELS, ids=name_of)
def test_the_header_states_the_certificate_and_its_numbers(path: Path) -> None:
    pack, statement = read(path)
    predicate, stated = statement.predicate, header(render_card(pack))
    assert stated["lethe"] == {
        "model": predicate.model,
        "version": predicate.version,
        "certificate_id": predicate.certificate_id,
        "certificate_sha256": hashlib.sha256(base64.b64decode(pack.envelope)).hexdigest(),
        "assurance": predicate.guarantee.assurance,
        "epsilon": predicate.guarantee.epsilon,
        "delta": predicate.guarantee.delta,
        "sigma": predicate.noise.sigma,
    }
    assert "license" not in stated, "a certificate does not state the model's licence"


@pytest.mark.parametrize("path", MODELS, ids=name_of)
def test_every_assumption_limit_and_digest_is_in_the_card(path: Path) -> None:
    pack, statement = read(path)
    card, report = render_card(pack), verify(pack)
    assert re.findall(r"^## (.*)$", card, re.MULTILINE) == SECTIONS
    for sentence in (*report.rests_on, *report.not_covered):
        assert f"- {escape(sentence)}\n" in card
    assert statement.weights_sha256 in card
    assert "The unit of privacy is a person" in card
    assert f"**σ = {statement.predicate.noise.sigma:g}**" in card
    assert ("A known attack can" in card) == (path.parts[-3] == "v1")


@pytest.mark.parametrize("path", MODELS, ids=name_of)
def test_an_estimate_is_never_presented_as_a_guarantee(path: Path) -> None:
    pack, statement = read(path)
    card = render_card(pack)
    is_estimate = statement.predicate.guarantee.assurance == "heuristic"
    assert ("**Estimate, not a guarantee.**" in card) == is_estimate
    assert ("No ε and δ are guaranteed." in card) == is_estimate
    assert ("states ε =" in card) != is_estimate


@pytest.mark.parametrize("path", [path for path in PACKS if path not in MODELS], ids=name_of)
def test_a_destroyed_draw_has_no_card(path: Path) -> None:
    with pytest.raises(ReleaseUnavailable, match="draw that was destroyed"):
        render_card(read(path)[0])


def test_a_pack_that_does_not_verify_has_no_card() -> None:
    pack, _ = read(GOLDEN / "v2/tr-proved/pack.json")
    other, _ = read(GOLDEN / "v2/retrain-proved/pack.json")
    with pytest.raises(NotVerified, match="the certificate does not verify") as refused:
        render_card(pack.model_copy(update={"log": other.log}))
    assert any(line.startswith("7. ") for line in refused.value.failures)


@pytest.mark.parametrize("path", EXPORTS, ids=name_of)
def test_the_commands_and_programs_of_a_card_work_in_the_folder_of_the_export(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(path.parent, tmp_path, dirs_exist_ok=True)
    shutil.copy(path.parents[1] / "keys.json", tmp_path)
    monkeypatch.chdir(tmp_path)
    pack, statement = read(path)
    card = render_card(pack)
    verification, loading = blocks(card, "sh")
    assert CliRunner().invoke(app, shlex.split(verification)[1:]).exit_code == 0
    assert loading.startswith("lethe export credit-scoring --onnx model.onnx")
    (program,) = blocks(card, "python")
    save_tokenizer(tmp_path / "tokenizer.json")
    names: dict[str, Any] = {}
    exec(program, names)
    family = statement.predicate.objective.family
    assert names["scores"].shape == (1, 10 if family == "softmax" else 1)
    assert all(f"`{output}`" in card for output in OUTPUTS[family])


def test_a_network_is_loaded_from_safetensors() -> None:
    card = render_card(read(GOLDEN / "v2/tr-conditional/pack.json")[0])
    verification, loading = blocks(card, "sh")
    assert verification == "lethe verify pack.json --model model.safetensors --keys keys.json\n"
    assert loading.startswith("lethe download credit-scoring --to model.safetensors")
    assert "library_name" not in header(card)


@pytest.mark.parametrize(
    ("name", "tag"), [("image", "image-classification"), ("text", "text-classification"), ("vector", None)]
)
def test_the_representation_has_its_origin_licence_and_input(name: str, tag: str | None) -> None:
    pack, statement = read(GOLDEN / f"v2-onnx/{name}/pack.json")
    card = render_card(pack)
    represented = statement.predicate.objective.representation  # type: ignore[union-attr]
    assert represented is not None
    assert f"- Origin, as declared: {escape(represented.declaration.origin)}\n" in card
    assert f"- Licence, as declared: {escape(represented.declaration.licence)}\n" in card
    assert represented.graph_sha256 in card
    assert header(card).get("pipeline_tag") == tag


def test_a_declaration_cannot_add_markup_to_a_card() -> None:
    graph = vector_graph()
    origin = "<script>alert(1)</script> **bold** [a](b) | `c`"
    represented = certified(ROW, graph=graph, outputs=("hidden",), normalisation="unit", origin=origin)
    card = render_card(export(graph, represented, "softmax").issuer.pack())
    assert "<script>" not in card
    assert r"\<script\>alert(1)\</script\> \*\*bold\*\* \[a\](b) \| \`c\`" in card


def test_ledger_and_evaluation_of_this_version_are_added() -> None:
    pack, statement = read(GOLDEN / "v2/tr-proved/pack.json")
    number = statement.predicate.version
    card = render_card(pack, ledger=as_ledger(1), evaluation=as_evaluation(number))
    assert "1 more release fits before the model must be retrained" in card
    assert "| F1 (micro) | 0.9125 |\n" in card
    assert "0.92 |" not in card, "the retrained model has no noise, so its scores are not published"
    assert "RMSE" not in card
    assert "7 more releases fit" in render_card(pack, ledger=as_ledger(7))
    assert "must be retrained" not in render_card(pack, ledger=as_ledger(None))
    with pytest.raises(ReleaseUnavailable, match="the evaluation is about version 99"):
        render_card(pack, evaluation=as_evaluation(99))


def test_a_superseded_version_says_so() -> None:
    pack, statement = read(GOLDEN / "v2/tr-proved/pack.json")
    version = Version(
        number=statement.predicate.version,
        state="current",
        sha256=statement.weights_sha256,
        size=1,
        certificate_id=UUID(statement.predicate.certificate_id),
        batch_id=None,
        created_at=datetime.now(UTC),
        superseded_at=None,
    )
    assert "A newer version has replaced this one" not in render_card(pack, version=version)
    replaced = version.model_copy(update={"state": "superseded"})
    assert "A newer version has replaced this one" in render_card(pack, version=replaced)
