"""Validation of manifests and policies, and of what may be uploaded or imported."""

import base64
import hashlib
from contextlib import suppress
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from app.core import import_roots
from app.core.import_roots import ImportRefused
from app.db import manifest as manifests
from app.db.manifest import Manifest
from app.gateway import uploads
from app.gateway.errors import InvalidRequest
from app.gateway.models.schemas import ModelRequest
from app.gateway.models.service import merge_patch
from app.gateway.uploads import Piece, parse_content_range, parse_repr_digest
from lethe.certificate import privacy
from lethe.policy import Policy

BASE: dict[str, Any] = {
    "family": "softmax",
    "width": 4,
    "classes": 3,
    "lambda": 0.1,
    "origins": {"features": "made up", "constants": "made up"},
}


MLP: dict[str, Any] = {"family": "mlp", "network": {"hidden": [8]}}
CNN: dict[str, Any] = {"family": "allcnn", "network": {"image": [1, 2, 2], "channels": [[4, 1]]}}
RESNET: dict[str, Any] = {
    "family": "resnet18",
    "network": {"image": [1, 2, 2], "base_width": 8, "groups": 2},
}


def test_what_measuring_curvature_may_use_up_is_kept_back_from_the_noise() -> None:
    network = Manifest.model_validate(BASE | MLP | {"policy": {"curvature_probability": 2e-6}})
    assert (network.rule, network.assurance, network.failure_probability) == ("B2", "conditional", 2e-6)
    assert network.sigma > network.policy.sigma
    assert privacy.delta_of(epsilon=1.0, shift=network.release_shift) <= 1e-5 - 2e-6
    assert Manifest.model_validate(BASE | MLP).failure_probability == pytest.approx(1e-9)


@pytest.mark.parametrize(
    ("change", "rule", "assurance"),
    [
        ({}, "B1", "proved"),
        (CNN, "B2", "conditional"),
        ({"policy": {"method": "zhang2024"}}, "zhang2024", "as-published"),
        (MLP | {"policy": {"method": "retrain"}}, "retrain", "proved"),
        ({"family": "own", "policy": {"heuristic": True}}, "B2", "heuristic"),
    ],
)
def test_family_and_method_decide_what_can_be_claimed(
    change: dict[str, Any], rule: str, assurance: str
) -> None:
    taken = Manifest.model_validate(BASE | change)
    assert (taken.rule, taken.assurance) == (rule, assurance)


def test_a_published_method_has_the_classical_noise_below_epsilon_one_and_the_same_shift_always() -> None:
    small = Manifest.model_validate(BASE | {"policy": {"method": "tr-paper", "epsilon": 0.5}})
    assert small.calibration == "classical"
    assert small.sigma_for(3.0) / small.sigma_for(1.0) == pytest.approx(3.0)
    assert 7.0 / small.sigma_for(7.0) == pytest.approx(small.release_shift)
    assert Manifest.model_validate(BASE | {"policy": {"method": "tr-paper"}}).calibration == "analytic"


def test_sigma_follows_from_the_policy_alone() -> None:
    policy = Policy(epsilon=2.0, delta=1e-6, target_distance=1e-3)
    shift = policy.target_distance / policy.sigma
    assert privacy.epsilon_for(delta=1e-6, shift=shift) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy": {"epsilon": 9.0, "lifetime_epsilon": 8.0}}, "not even one release would fit"),
        ({"policy": {"method": "magic"}}, "'tr', 'retrain', 'tr-paper'"),
        ({"policy": {"quality_gate": {"max_drop": 1}}}, "Extra inputs"),
        ({"policy": {"max_kl_alert": 0}}, "greater than 0"),
        ({"classes": None}, "classes is needed for softmax"),
        ({"family": "ridge"}, "classes is needed for softmax"),
        ({"lambda": 0}, "greater than"),
        ({"lambda": 9e-31}, "greater than or equal to 0.000"),
        ({"lambda": float("nan")}, "finite"),
        ({"policy": {"delta": 9e-16}}, "greater than or equal to 0.000"),
        ({"policy": {"delta": 0.011}}, "less than or equal to 0.01"),
        ({"policy": {"delta": float("nan")}}, "finite"),
        ({"policy": {"epsilon": 21.0, "lifetime_epsilon": 50.0}}, "less than or equal to 20"),
        ({"family": "boosting", "classes": None}, "for one, set network.linearised to true"),
        ({"family": "torch"}, "torch is not a built-in family. The built-in families are logistic, ridge"),
        ({"family": "sofmax"}, "Did you mean softmax"),
        ({"family": "ResNet18"}, "Did you mean resnet18"),
        (RESNET | {"policy": {}}, "curvature of a resnet18 changes: set network.linearised to true"),
        (MLP | {"network": None}, "described by hidden"),
        (MLP | {"network": {"hidden": [8], "image": [1, 2, 2]}}, "described by hidden alone"),
        (MLP | {"network": {"hidden": [8], "activation": "relu"}}, "relu has a kink"),
        (MLP | {"network": {"hidden": [8], "activation": "relu"}}, "Set linearised to true"),
        (
            MLP | {"network": {"hidden": [8], "activation": "elu"}},
            "relu, which has a kink and needs linearised",
        ),
        (MLP | {"network": {"hidden": [8], "activation": "ReLU"}}, "Did you mean relu"),
        (MLP | {"network": {"hidden": [8], "layers": ["layers.0"]}}, "layers can only be chosen"),
        (MLP | {"network": {"hidden": [8], "linearised": True, "layers": ["a", "a"]}}, "named twice"),
        (MLP | {"bias": False}, "bias cannot be false"),
        (MLP | {"policy": {"method": "guo2020"}}, "convex in the weights"),
        (MLP | {"policy": {"curvature_probability": 1e-5}}, "half of delta"),
        (MLP | {"policy": {"delta": 1.5e-15}}, "would use it up"),
        (CNN | {"network": {"image": [3, 2, 2], "channels": [[4, 1]]}}, "number of pixels"),
        ({"network": {"hidden": [8]}}, "a softmax model has no network"),
        (
            {"family": "resnet18", "network": {"image": [1, 2, 2], "base_width": 9, "groups": 2}},
            "multiple of network.groups",
        ),
        (
            {"family": "resnet18", "network": {"image": [1, 2, 2], "base_width": 8, "groups": 2}},
            "or its heuristic to true",
        ),
        ({"origins": {"features": "f", "constants": "c", "anchor": ""}}, "should match pattern"),
        ({"origins": {"features": "f\u0000", "constants": "c"}}, "should match pattern"),
        ({"annotations": {"two words": "x"}}, "name of an annotation"),
        ({"annotations": {"n": "\u0000"}}, "should match pattern"),
        ({"annotations": {"n": "x" * 200_000, "m": "x" * 200_000}}, "more than 262,144 characters together"),
        ({"annotations": {str(i): "" for i in range(17)}}, "at most 16 items"),
    ],
)
def test_what_does_not_go_together_is_refused_with_a_reason(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Manifest.model_validate(BASE | change)


def test_the_smallest_delta_and_lambda_are_taken() -> None:
    policy = {"delta": 1e-15, "epsilon": 20.0, "lifetime_epsilon": 20.0}
    taken = Manifest.model_validate(BASE | {"lambda": 1e-30, "policy": policy})
    assert (taken.lam, taken.policy.delta, taken.policy.epsilon) == (1e-30, 1e-15, 20.0)


def test_a_family_is_known_by_the_name_of_its_entry_point_without_importing_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = {"name": "m", "manifest": BASE | {"family": "boosting", "policy": {"method": "retrain"}}}
    with pytest.raises(ValidationError, match="the family is not known; there are allcnn, logistic, mlp"):
        ModelRequest.model_validate(body)
    entry = EntryPoint("boosting", "a_module_that_does_not_exist:family", "lethe.families")
    monkeypatch.setattr(manifests, "entry_points", lambda group: [entry] if group == entry.group else [])
    assert ModelRequest.model_validate(body).manifest.family == "boosting"


def test_a_stored_manifest_can_be_read_when_its_plug_in_is_gone() -> None:
    assert (
        Manifest.model_validate(BASE | {"family": "gone", "policy": {"method": "retrain"}}).family == "gone"
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


@given(json_values, json_values)
def test_a_merge_patch_applied_twice_changes_nothing_more(document: Any, patch: Any) -> None:
    once = merge_patch(document, patch)
    assert merge_patch(once, patch) == once


@given(st.dictionaries(st.sampled_from("abc"), st.integers(), max_size=3))
def test_null_removes_and_an_empty_patch_keeps(document: dict[str, int]) -> None:
    assert merge_patch(document, {}) == document
    assert merge_patch(document, dict.fromkeys(document)) == {}


def test_a_piece_is_read_from_content_range() -> None:
    assert parse_content_range(None) is None
    assert parse_content_range("bytes 0-9/10") == Piece(0, 10, 10)


@pytest.mark.parametrize(
    "header", ["bytes 0-9", "bytes */10", "bytes 5-4/10", "bytes 0-10/10", "items 0-1/2", ""]
)
def test_a_malformed_content_range_is_refused(header: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_content_range(header)


def test_the_digest_is_read_from_repr_digest() -> None:
    digest = hashlib.sha256(b"x").digest()
    header = f"md5=:abcd:, sha-256=:{base64.b64encode(digest).decode()}:"
    assert parse_repr_digest(header) == digest.hex()
    assert parse_repr_digest(None) is None
    for wrong in ("sha-256=:abc:", "sha-256=:!:", "md5=:abcd:", ""):
        with pytest.raises(InvalidRequest):
            uploads.parse_repr_digest(wrong)


@pytest.mark.parametrize(
    "uri",
    [
        "file:///data/../etc/passwd",
        "file:///data/./x",
        "file:///data//x",
        "file:///data/%2e%2e/x",
        "file:///database/x",
        "file:///etc/passwd",
        "/data/x",
        "zip://x::file:///data/x",
        "file:///data/*.parquet",
        "s3://key:secret@bucket/data/x",
        "s3://bucket/other/x",
        "s3://bucket/data",
        "s3://bucket/data/",
        "https://host/data/x?y=1",
        "file:///data/x\n",
    ],
)
def test_imports_stay_below_an_allowed_root(uri: str) -> None:
    with pytest.raises(ImportRefused) as refusal:
        import_roots.check(uri, "*=file:///data *=s3://bucket/data/", "acme")
    assert uri not in str(refusal.value)


def test_an_import_below_a_root_is_allowed_and_none_without_roots() -> None:
    assert import_roots.check("s3://bucket/data/a/b.parquet", "*=file:///data *=s3://bucket/data", "acme")
    with pytest.raises(ImportRefused, match="off"):
        import_roots.check("s3://bucket/data/a", "", "acme")


SHARED = "file:///srv/imports s3://lake/rows/ acme=s3://acme-exports/a=b *=s3://public"


@pytest.mark.parametrize(
    ("uri", "tenants"),
    [
        ("file:///srv/imports/acme/a.parquet", {"acme"}),
        ("file:///srv/imports/acme/deep/a.parquet", {"acme"}),
        ("file:///srv/imports/a.parquet", set()),
        ("file:///srv/imports/acme", set()),
        ("file:///srv/imports/other/a.parquet", {"other"}),
        ("file:///srv/imports/acme/../other/a.parquet", set()),
        ("file:///srv/imports/acme-2/a.parquet", set()),
        ("s3://lake/rows/other/a.parquet", {"other"}),
        ("s3://acme-exports/a=b/a.parquet", {"acme"}),
        ("s3://public/a.parquet", {"acme", "other", ".."}),
    ],
)
def test_a_tenant_imports_from_its_own_folder_or_root(uri: str, tenants: set[str]) -> None:
    allowed = set()
    for tenant in ("acme", "other", "..", ".", "*", "", "a/b"):
        with suppress(ImportRefused):
            import_roots.check(uri, SHARED, tenant)
            allowed.add(tenant)
    assert allowed & {"acme", "other", ".."} == tenants
    assert allowed & {"acme", "other"} or not allowed


def test_a_link_does_not_lead_into_the_folder_of_another_tenant(tmp_path: Path) -> None:
    for tenant in ("acme", "other"):
        (tmp_path / tenant).mkdir()
        (tmp_path / tenant / "rows").write_text("rows")
    (tmp_path / "acme" / "link").symlink_to(tmp_path / "other" / "rows")
    (tmp_path / "acme" / "folder").symlink_to(tmp_path / "other")
    assert import_roots.check(f"file://{tmp_path}/acme/rows", f"file://{tmp_path}", "acme")
    for path in ("acme/link", "acme/folder/rows", "other/rows"):
        with pytest.raises(ImportRefused):
            import_roots.check(f"file://{tmp_path}/{path}", f"file://{tmp_path}", "acme")


def test_a_link_does_not_lead_out_of_the_root(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.write_text("secret")
    (inside / "own").write_text("ours")
    (inside / "link").symlink_to(outside)
    assert import_roots.check(f"file://{inside}/own", f"*=file://{inside}", "acme")
    with pytest.raises(ImportRefused):
        import_roots.check(f"file://{inside}/link", f"*=file://{inside}", "acme")


@pytest.mark.parametrize(
    ("policy", "smallest"),
    [
        ({}, 10),
        ({"batch_subjects": 4}, 4),
        ({"batch_subjects": 4, "min_batch_subjects": 2}, 2),
        ({"min_batch_subjects": 1}, 1),
        ({"min_batch_subjects": 50}, 50),
    ],
)
def test_the_smallest_batch_is_ten_people_unless_full_ones_are_smaller(
    policy: dict[str, Any], smallest: int
) -> None:
    assert Policy.model_validate(policy).smallest_batch == smallest


def test_a_full_batch_cannot_be_too_small() -> None:
    with pytest.raises(ValidationError, match="a full batch would be too small"):
        Policy(batch_subjects=5, min_batch_subjects=6)


@pytest.mark.parametrize(
    ("gate", "compares"),
    [
        ({"min_f1": 80.0, "max_loss": 1.0}, False),
        ({"max_f1_drop": 1.0}, True),
        ({"max_loss_rise": 0.1}, True),
    ],
)
def test_a_gate_says_whether_it_compares_with_the_version_before(
    gate: dict[str, float], compares: bool
) -> None:
    taken = Policy.model_validate({"quality_gate": gate}).quality_gate
    assert taken is not None
    assert taken.compares is compares


LOOKS = {"warning_codes": ["features-look-standardised"], "warnings": ["a sentence"]}


@pytest.mark.parametrize(
    ("report", "declared", "unresolved"),
    [
        (None, None, False),
        ({"warnings": ["another"]}, None, False),
        ({"warning_codes": ["from-a-newer-version"]}, None, False),
        (LOOKS, None, True),
        (LOOKS, "none", True),
        (LOOKS, "public data", False),
    ],
)
def test_what_registration_noticed_lowers_the_tier_until_the_owner_answers(
    report: dict[str, Any] | None, declared: str | None, unresolved: bool
) -> None:
    origins = BASE["origins"] | {"standardisation": declared}
    manifest = Manifest.model_validate(BASE | {"origins": origins})
    found = manifests.unresolved_warnings(manifest, report)
    assert found == (("features-look-standardised",) if unresolved else ())
    assert manifests.expected_assurance(manifest, report) == ("conditional" if unresolved else "proved")
    assert bool(manifests.assurance_notes(manifest, report)) is unresolved


def test_a_tier_below_proved_is_not_lowered_further() -> None:
    manifest = Manifest.model_validate(BASE | {"policy": {"method": "guo2020"}})
    assert manifests.expected_assurance(manifest, LOOKS, changed_after_refusal=True) == "as-published"
    assert len(manifests.assurance_notes(manifest, LOOKS, changed_after_refusal=True)) == 2


def test_the_declaration_about_constants_is_printed_with_the_features() -> None:
    origins = BASE["origins"] | {"standardisation": "public data"}
    said = Manifest.model_validate(BASE | {"origins": origins}).origins.declared_features
    assert said == "made up; standardised with constants from public data"
    assert Manifest.model_validate(BASE).origins.declared_features == "made up"
