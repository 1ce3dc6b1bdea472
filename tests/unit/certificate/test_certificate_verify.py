"""The checklist accepts every honest certificate and refuses every dishonest one by the name of the check."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest
from certificate_cases import (
    DELTA,
    EPSILON,
    FAILURE,
    KINDS,
    TARGET,
    Issued,
    Issuer,
    lanczos,
    needed_sigma,
    tiny_checkpoint,
    uuid7,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from certificate.assurance import guarantee_for
from certificate.chain import extend_lifetime
from certificate.checkpoint import check_file, read_metadata
from certificate.envelope import sign
from certificate.errors import CHECKLIST, FileMismatch, UnusableInput
from certificate.evidence import commit
from certificate.keys import KeySet, PublicKey, SigningKey
from certificate.merkle import MemoryTree, leaf_hash
from certificate.note import Checkpoint, sign_checkpoint
from certificate.pack import EarlierHead, LinkSummary, Pack
from certificate.statement import serialise
from certificate.verify import Report, verify

KEY = SigningKey.generate()


def report_on(issuer: Issuer, issued: Issued | None = None, **given_too: Any) -> Report:
    issued = issued or issuer.chain[-1]
    return verify(issuer.pack(issued), **({"model": issued.model, "evidence": issued.evidence} | given_too))


def failed_lines(report: Report) -> list[int]:
    return [line.number for line in report.failed]


def refused(report: Report, number: int, words: str) -> None:
    """Exactly this check failed, and says why."""
    assert failed_lines(report) == [number], report
    assert words in report.failed[0].detail, report.failed[0].detail
    assert report.failed[0].title == CHECKLIST[number - 1].title
    assert not report.verified
    assert report.proves == ()


def resigned(kind: str = "tr-proved", *, evidence_edit: dict[str, Any] | None = None, **edit: Any) -> Issuer:
    """An issuer whose last certificate was edited before it was signed and logged."""
    issuer = Issuer(KEY)
    issuer.issue("tr-proved")
    issuer.issue(kind, edit=edit, evidence_edit=evidence_edit)
    return issuer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "before", [(), ("tr-conditional", "discarded-proved"), ("tr-heuristic", "retrain-proved", "tr-proved")]
)
def test_honest_certificates_verify_wherever_they_stand_in_a_chain(kind, before):
    issuer = Issuer(KEY)
    for earlier in before:
        issuer.issue(earlier)
    issued = issuer.issue(kind)
    report = report_on(
        issuer,
        receipt=issued.receipts[0],
        subject="subject-0",
        since=issuer.head(2).encode(),
        keys=issuer.keys,
    )
    assert report.verified, report
    assert [line.number for line in report.lines] == list(range(1, 10))
    assert all(line.ok for line in report.lines)


def test_what_nobody_asked_for_is_neither_passed_nor_failed():
    issuer = Issuer(KEY)
    issued = issuer.issue()
    report = verify(issuer.pack(), model=issued.model)
    assert report.verified
    assert [(line.number, line.ok) for line in report.lines if not line.ok] == [(8, None)]


def test_report_says_what_it_does_not_prove():
    issuer = Issuer(KEY)
    issuer.issue()
    words = " ".join(report_on(issuer).does_not_prove)
    assert "measured honestly" in words
    assert "came with the pack" in words
    assert "came with the pack" not in " ".join(report_on(issuer, keys=issuer.keys).does_not_prove)


def test_an_estimate_says_so_first():
    issuer = Issuer(KEY)
    issuer.issue("tr-heuristic")
    assert report_on(issuer).headline.startswith("ESTIMATE, NOT A GUARANTEE")


# 1. signature ---------------------------------------------------------------------------------------------


def test_unknown_and_expired_keys_are_refused():
    issuer = Issuer(KEY)
    issued = issuer.issue()
    stranger = KeySet(keys=(PublicKey.of(SigningKey.generate()),))
    report = report_on(issuer, keys=stranger)
    assert failed_lines(report) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert "unknown key" in report.lines[0].detail
    assert report.lines[3].detail.startswith("not run")
    expired = KeySet(keys=(PublicKey.of(KEY, valid_until=issued.index),))
    assert "valid for places [0, 3)" in report_on(issuer, keys=expired).lines[0].detail


def test_old_certificates_verify_under_the_key_of_their_time_after_rotation():
    issuer = Issuer(KEY)
    old = issuer.issue()
    handover = issuer.log.size
    issuer.key = SigningKey.generate()
    issuer.keys = KeySet(
        keys=(PublicKey.of(KEY, valid_until=handover), PublicKey.of(issuer.key, valid_from=handover))
    )
    new = issuer.issue()
    assert report_on(issuer, old).verified
    assert report_on(issuer, new).verified
    issuer.key = KEY
    late = issuer.issue()
    assert 1 in failed_lines(report_on(issuer, late))


def test_a_false_place_cannot_make_a_key_valid():
    """An expired key's certificate, presented as if it stood earlier in the log."""
    issuer = Issuer(KEY)
    issued = issuer.issue()
    issuer.keys = KeySet(
        keys=(PublicKey.of(KEY, valid_until=issued.index), PublicKey.of(SigningKey.generate()))
    )
    report = verify(issuer.pack(index=issued.index - 1), model=issued.model)
    assert 7 in failed_lines(report)


# 3. file --------------------------------------------------------------------------------------------------


def test_another_file_no_file_and_a_file_that_should_be_gone_are_refused():
    issuer = Issuer(KEY)
    issued = issuer.issue()
    assert issued.model is not None
    refused(report_on(issuer, model=issued.model + b"\0"), 3, "the certificate is for")
    refused(report_on(issuer, model=None), 3, "no model file")
    issuer.issue("discarded-proved")
    refused(report_on(issuer, model=issued.model), 3, "destroyed")


def test_a_header_that_names_another_certificate_is_refused():
    issuer = Issuer(KEY)
    issuer.issue(model=tiny_checkpoint(uuid7(99), issuer.model, 1))
    refused(report_on(issuer), 3, "lethe.certificate_id")
    issuer = Issuer(KEY)
    issuer.issue(model=tiny_checkpoint(uuid7(1), issuer.model, 7))
    refused(report_on(issuer), 3, "lethe.version")


@pytest.mark.parametrize(
    "data",
    [b"", b"short", b"\xff" * 20, (5).to_bytes(8, "little") + b"{", (4).to_bytes(8, "little") + b"[[[[",
     (60_000).to_bytes(8, "little") + b"[" * 60_000, (2).to_bytes(8, "little") + b"[]",
     (19).to_bytes(8, "little") + b'{"__metadata__": 5}'],
)  # fmt: skip
def test_files_that_are_not_safetensors_are_judged_by_their_digest_alone(data):
    assert not read_metadata(data)
    predicate = Issuer(KEY).issue().statement.predicate
    assert check_file(data, hashlib.sha256(data).hexdigest(), predicate).startswith("sha256")
    with pytest.raises(FileMismatch):
        check_file(data, "0" * 64, predicate)


def test_a_missing_model_file_is_unusable(tmp_path):
    issuer = Issuer(KEY)
    issuer.issue()
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(UnusableInput, match="model file"):
            verify(issuer.pack(), model=path)


# 4. noise -------------------------------------------------------------------------------------------------


def sigma(calibration: str = "analytic", **kwargs: float) -> float:
    return needed_sigma(calibration, **({"epsilon": EPSILON, "delta": DELTA, "distance": TARGET} | kwargs))


def noise_failure(kind: str, **edit: Any) -> Report:
    """The lifetime is recomputed honestly for the edited noise, so that line 4 alone can fail."""
    issuer = Issuer(KEY)
    issued = issuer.issue(kind)
    predicate = issued.statement.predicate
    noise, bound = edit.get("noise", {}), edit.get("bound", {})
    shift = bound.get("distance_target", TARGET) / noise.get("sigma", predicate.noise.sigma)
    lifetime = extend_lifetime(
        None,
        None,
        mechanism=predicate.mechanism,
        shift=shift,
        failure_probability=bound.get("failure_probability", predicate.bound.failure_probability),
        assurance=predicate.guarantee.assurance,
        delta=DELTA,
        cap=None,
    )
    issuer = Issuer(KEY)
    issued = issuer.issue(kind, edit=edit | {"lifetime": lifetime.model_dump()})
    return verify(issuer.pack(), model=issued.model)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(
        ["tr-proved", "tr-proved-classical", "tr-conditional", "tr-heuristic", "guo2020-as-published"]
    ),
    st.floats(0.01, 1 - 1e-11),
)
def test_sigma_too_small_by_any_factor_is_refused(kind, factor):
    calibration = KINDS[kind][4]
    failure = FAILURE if KINDS[kind][1] == "B2" else 0.0
    small = sigma(calibration, delta=DELTA - failure) * factor
    refused(noise_failure(kind, noise={"sigma": small}), 4, "need")


def test_more_noise_than_needed_is_fine():
    assert noise_failure("tr-proved", noise={"sigma": sigma() * 1.5}).verified


def test_sigma_for_delta_instead_of_delta_less_p_is_refused():
    refused(noise_failure("tr-conditional", noise={"sigma": sigma(delta=DELTA)}), 4, "δ - p")


def test_a_failure_probability_that_uses_up_delta_is_refused():
    report = noise_failure("tr-conditional", bound={"failure_probability": DELTA * 0.999999})
    assert 4 in failed_lines(report)
    issuer = resigned("tr-conditional", bound={"failure_probability": DELTA})
    assert 4 in failed_lines(report_on(issuer))


@pytest.mark.parametrize("epsilon", [1.0, 1.5, 8.0])
def test_classical_noise_from_epsilon_one_on_is_refused(epsilon):
    guarantee = guarantee_for(rule="B1", assurance="proved", epsilon=epsilon, delta=DELTA)
    report = noise_failure(
        "tr-proved-classical", guarantee=guarantee.model_dump() | {"assumptions": guarantee.assumptions}
    )
    refused(report, 4, "ε < 1")


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, DELTA), (EPSILON, 0.0), (1e-308, 1e-308), (1e300, 0.5)])
def test_headlines_no_noise_can_give_are_refused_without_a_crash(epsilon, delta):
    report = noise_failure("tr-proved", guarantee={"epsilon": epsilon, "delta": delta})
    if epsilon == 1e300:
        assert 4 in failed_lines(report) or report.verified
    else:
        refused(report, 4, "")


# 5. assurance ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["mlp", "allcnn", "resnet18", "my-plugin", "Softmax"])
def test_proved_on_a_network_is_refused(family):
    refused(report_on(resigned(objective={"family": family})), 5, "convex")


def test_assurance_above_what_the_rule_gives_is_refused():
    for kind, claimed in [
        ("tr-conditional", "proved"),
        ("tr-paper-as-published", "conditional"),
        ("guo2020-as-published", "proved"),
    ]:
        issuer = resigned(kind, guarantee={"assurance": claimed})
        assert 5 in failed_lines(report_on(issuer))
        assert "does not give" in report_on(issuer).lines[4].detail


def test_assumptions_inequalities_and_data_independence_must_be_stated():
    refused(
        report_on(resigned("tr-conditional", guarantee={"assumptions": ()})),
        5,
        "retraining-reaches-reference",
    )
    refused(report_on(resigned("tr-conditional", bound={"inequalities": ("mu0 > 0",)})), 5, "h < 1/2")
    refused(report_on(resigned("tr-proved", noise={"data_independent": False})), 5, "depend on the data")


def test_mechanism_and_rule_must_belong_together():
    refused(report_on(resigned("tr-proved", mechanism="guo2020")), 5, "not bounded by")
    assert 5 in failed_lines(report_on(resigned("tr-proved", bound={"failure_probability": 1e-9})))


# 6. chain -------------------------------------------------------------------------------------------------


@pytest.fixture
def chain() -> Issuer:
    issuer = Issuer(KEY)
    for kind in ("tr-proved", "discarded-proved", "tr-conditional", "tr-proved"):
        issuer.issue(kind)
    return issuer


def test_a_skipped_link_is_refused(chain):
    links = chain.chain[-1].earlier
    last = chain.chain[-1]
    for missing in range(len(links)):
        pack = chain.pack(predecessors=links[:missing] + links[missing + 1 :])
        refused(verify(pack, model=last.model), 6, "")
    refused(verify(chain.pack(predecessors=[]), model=last.model), 6, "holds no earlier one")
    refused(verify(chain.pack(predecessors=links[1:]), model=last.model), 6, "earlier links are missing")
    refused(verify(chain.pack(predecessors=links[::-1]), model=last.model), 6, "predecessor")


def test_an_uncounted_discarded_draw_is_refused():
    issuer = Issuer(KEY)
    issuer.issue("tr-proved")
    honest = issuer.issue("discarded-proved")
    before = issuer.chain[0].statement.predicate.lifetime
    following = issuer.issue("tr-proved")
    counted = following.statement.predicate.lifetime
    # As if the draw had not happened: the sum of the two published releases alone.
    skipped = honest.statement.predicate.lifetime
    issuer = Issuer(KEY)
    issuer.issue("tr-proved")
    issuer.issue("discarded-proved")
    issuer.issue(
        "tr-proved",
        edit={"lifetime": {"running_shift": skipped.running_shift, "epsilon_total": skipped.epsilon_total}},
    )
    refused(report_on(issuer), 6, "the shifts sum to")
    assert before.running_shift < skipped.running_shift < counted.running_shift


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["release_shift", "running_shift", "epsilon_total"]), st.floats(0, 1 - 1e-11))
def test_a_sum_too_low_by_any_factor_is_refused(name, factor):
    issuer = Issuer(KEY)
    issuer.issue("tr-proved")
    honest = getattr(issuer.issue("tr-proved").statement.predicate.lifetime, name)
    refused(report_on(resigned("tr-proved", lifetime={name: honest * factor})), 6, "")


def test_failure_probabilities_cap_and_assurance_of_the_lifetime_are_recomputed():
    refused(
        report_on(resigned("tr-conditional", lifetime={"running_failure_probability": 0.0})),
        6,
        "failure probabilities",
    )
    refused(report_on(resigned("tr-proved", lifetime={"cap": 0.9})), 6, "past the cap")
    refused(report_on(resigned("tr-conditional", lifetime={"assurance": "proved"})), 6, "weakest")
    refused(report_on(resigned("tr-heuristic", lifetime={"epsilon_total": 1.0})), 6, "heuristic")


def test_a_retrain_resets_the_sum_and_a_discarded_one_does_not():
    issuer = Issuer(KEY)
    for kind in ("tr-proved", "tr-proved", "retrain-proved", "tr-proved"):
        issued = issuer.issue(kind)
    lifetime = issued.statement.predicate.lifetime
    assert lifetime.running_shift == lifetime.release_shift
    assert report_on(issuer).verified
    # Only the links since the retrain are needed.
    assert verify(issuer.pack(predecessors=issued.earlier[2:]), model=issued.model).verified
    refused(verify(issuer.pack(predecessors=[]), model=issued.model), 6, "no earlier one")


def test_a_predecessor_of_another_model_or_signer_is_refused(chain):
    foreign = Issuer(SigningKey.generate())
    foreign.issue()
    last, links = chain.chain[-1], chain.chain[-1].earlier
    pack = chain.pack(predecessors=[foreign.chain[0].envelope, *links[1:]])
    refused(verify(pack, model=last.model), 6, "unknown key")
    edited = links[0].raw.replace(b'"payloadType"', b' "payloadType"', 1)
    pack = chain.pack().model_dump()
    pack["predecessors"][0]["envelope"] = base64.b64encode(edited).decode()
    refused(verify(json.dumps(pack).encode(), model=last.model), 6, "predecessor")


def test_a_parent_that_contradicts_the_chain_is_refused():
    refused(
        report_on(resigned("tr-proved", parent={"checkpoint_sha256": "0" * 64})), 6, "parent's checkpoint"
    )
    refused(report_on(resigned("tr-proved", parent={"version": 0})), 6, "is older")


def test_summaries_stand_in_for_envelopes_and_are_said_to(chain):
    last = chain.chain[-1]
    links: list[Any] = list(last.earlier)
    first = chain.chain[0]
    links[0] = LinkSummary(
        digest=first.envelope.digest, model=chain.model, mechanism="tr", failure_probability=0.0,
        lifetime=first.statement.predicate.lifetime,
    )  # fmt: skip
    report = verify(chain.pack(predecessors=links), model=last.model)
    assert report.verified
    assert "on the issuer's word" in report.lines[5].detail
    links[0] = links[0].model_copy(update={"digest": "0" * 64})
    refused(verify(chain.pack(predecessors=links), model=last.model), 6, "does not name")


# 7. log ---------------------------------------------------------------------------------------------------


def test_a_certificate_that_was_never_logged_is_refused():
    issuer = Issuer(KEY)
    issued = issuer.issue(log_it=False)
    issued.index = 2
    refused(report_on(issuer), 7, "not at place 2")


def test_a_truncated_or_rewritten_log_is_refused(chain):
    kept = chain.head()
    last = chain.chain[-1]
    whole = chain.log
    chain.log = MemoryTree([whole.node(0, k) for k in range(whole.size - 1)])
    refused(report_on(chain, chain.chain[0], since=kept.encode()), 7, "truncated")
    chain.log = MemoryTree([leaf_hash(b"edited"), *(whole.node(0, k) for k in range(1, whole.size))])
    chain.log.append(leaf_hash(b"new"))
    refused(report_on(chain, last, since=kept.encode()), 7, "does not extend")


def test_since_takes_a_bare_note_or_one_with_its_proof(chain):
    last = chain.chain[-1]
    bare = chain.head(4)
    path = tuple(step.hex() for step in chain.log.consistency_proof(4))
    whole = EarlierHead(checkpoint=bare, path=path)
    pack = chain.pack(consistency=())
    assert verify(pack, model=last.model, since=whole.to_bytes()).verified
    refused(verify(pack, model=last.model, since=bare.encode()), 7, "does not extend")
    assert verify(chain.pack(), model=last.model, since=bare.encode()).verified
    foreign = sign_checkpoint(Checkpoint("other.example/log", 4, chain.log.root(4)), KEY)
    refused(report_on(chain, since=foreign.encode()), 7, "another log")
    refused(report_on(chain, since=b"\xff\xfe garbage"), 7, "signed note")


# 8. evidence ----------------------------------------------------------------------------------------------


def with_evidence(kind: str, **changes: Any) -> Report:
    return report_on(resigned(kind, evidence_edit=changes))


def test_evidence_of_another_run_does_not_open_the_commitment():
    issuer = Issuer(KEY)
    issued = issuer.issue()
    other = issued.evidence.model_copy(update={"salt": "00" * 16})
    refused(report_on(issuer, evidence=other), 8, "commits to")


def test_a_target_below_the_evidence_is_refused():
    refused(with_evidence("tr-proved", distance=TARGET * 1.01), 8, "above Δ*")
    refused(with_evidence("tr-proved", gradient_norm=2e-6), 8, "its own numbers give")
    refused(with_evidence("tr-proved", gradient_norm=2e-6, distance=2.1e-4), 8, "above Δ*")
    refused(with_evidence("guo2020-as-published", distance=TARGET * 1.01), 8, "above Δ*")
    refused(with_evidence("tr-proved", rounding_error=1.1e-6), 8, "rounding error alone")
    refused(with_evidence("tr-proved", distance=0.0), 8, "its own numbers give")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"floor": 0.2}, "Ritz values give"),
        ({"floor": -0.1}, "not above 0"),
        ({"hessian_lipschitz": 1e9}, "not below 1/2"),
        ({"kantorovich": 1e-9}, "the evidence says h"),
        ({"ball_radius": 1e-9}, "ball smaller"),
        ({"runs": ()}, "no Lanczos run"),
        ({"hessian_lipschitz_source": "sampled"}, "sampled"),
    ],
)
def test_curvature_that_does_not_support_b2_is_refused(change, words):
    refused(with_evidence("tr-conditional", curvature=lanczos().model_copy(update=change)), 8, words)


def test_failure_probabilities_and_ritz_values_are_added_up():
    curvature = lanczos()
    spent = curvature.runs + (curvature.runs[0],) * 2
    refused(
        with_evidence("tr-conditional", curvature=curvature.model_copy(update={"runs": spent})),
        8,
        "p_j sum to",
    )
    run = curvature.runs[0].model_copy(update={"ritz_min": 0.06})
    refused(
        with_evidence("tr-conditional", curvature=curvature.model_copy(update={"runs": (run,)})),
        8,
        "extremes",
    )
    refused(with_evidence("tr-conditional", curvature=None), 8, "curvature")


def test_the_split_route_adds_lambda():
    run = (
        lanczos()
        .runs[0]
        .model_copy(update={"route": "split", "ritz_min": -0.001, "ritz_max": 0.001, "ritz_values": ()})
    )
    curvature = lanczos().model_copy(update={"runs": (run,), "floor": 0.0089, "hessian_lipschitz": 1.0})
    gradient = 1e-8
    update = {
        "gradient_norm": gradient,
        "distance": 2.0e-6,
        "curvature": curvature.model_copy(update={"kantorovich": 1e-3, "ball_radius": 1e-5}),
    }
    assert with_evidence("tr-conditional", **update).verified


def test_evidence_of_another_certificate_is_refused():
    refused(report_on(resigned(certificate_id=uuid7(77))), 8, "another certificate")


# 9. receipt -----------------------------------------------------------------------------------------------


def test_receipts_of_other_certificates_and_subjects_are_refused(chain):
    first, last = chain.chain[0], chain.chain[-1]
    refused(report_on(chain, receipt=first.receipts[0]), 9, "another certificate")
    refused(report_on(chain, receipt=last.receipts[0], subject="subject-1"), 9, "not about this subject")
    assert report_on(chain, receipt=last.receipts[1].to_bytes(), subject="subject-1").verified


def test_a_pack_can_carry_evidence_and_receipt():
    issuer = Issuer(KEY)
    issued = issuer.issue()
    pack = issuer.pack(evidence=issued.evidence, receipt=issued.receipts[2])
    report = verify(Pack.read(pack.to_bytes(), "pack"), model=issued.model)
    assert report.verified
    assert [line.number for line in report.lines if line.ok] == list(range(1, 10))


def test_a_statement_that_is_not_ours_is_refused_by_line_two():
    issuer = Issuer(KEY)
    issued = issuer.issue()
    payload = serialise(issued.statement).replace(b"unlearning:v1", b"unlearning:v9")
    issued.envelope = sign(payload, KEY)
    issued.index = issuer.log.append(leaf_hash(bytes.fromhex(issued.envelope.digest)))
    report = report_on(issuer)
    assert failed_lines(report) == [2, 3, 4, 5, 6, 8]
    assert "unlearning:v9" in report.lines[1].detail
    assert commit(issued.evidence)
