"""False claims that are signed and logged with the real key are refused by name."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lethe.certificate.keys import KeySet, PublicKey, SigningKey
from lethe.certificate.merkle import MemoryTree, leaf_hash
from lethe.certificate.pack import EarlierHead, LogConsistency, Pack
from lethe.certificate.privacy import grid_step
from lethe.certificate.tree_head import TreeHead, sign_tree_head
from lethe.certificate.verify import VerificationReport, verify
from tests.unit.certificate.certificate_cases import Issued, Issuer, needed_sigma
from tests.unit.certificate.certificate_evidence_cases import TARGET, uuid7
from tests.unit.certificate.certificate_reports import KEY, failed_lines, refused, report_on
from tests.unit.certificate.certificate_v1_cases import issue_v1, pack_v1


def after_a_lie(kind: str = "tr-proved", *, family: str | None = None, **edit: Any) -> VerificationReport:
    """Return the report on an honest certificate whose predecessor was edited. Its sums follow the edit."""
    issuer = Issuer(KEY, family=family)
    issuer.issue(kind, edit=edit)
    issuer.issue(kind)
    return report_on(issuer)


def test_a_predecessor_proved_by_b1_on_a_network_is_refused():
    issuer = Issuer(KEY, family="mlp")
    issuer.issue("tr-proved")
    issuer.issue("tr-conditional")
    refused(report_on(issuer), 6, "link 0 does not verify: rule B1 needs a loss convex")


def test_a_predecessor_with_half_the_noise_is_refused_though_its_sums_are_right():
    half = needed_sigma("analytic") / 2
    shift = TARGET / half
    lifetime = Issuer(KEY).lifetime("tr-proved", shift=shift, failure=0.0).model_dump()
    report = after_a_lie(noise={"sigma": half, "grid_step": grid_step(half)}, lifetime=lifetime)
    refused(report, 6, "link 0 does not verify: σ is")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"running_shift": 0.0}, "link 0: the shifts sum to"),
        ({"epsilon_total": 0.1}, "link 0: the lifetime's ε is"),
        ({"running_residual": 0.0}, "link 0: the residuals sum to"),
        ({"assurance": "conditional"}, "link 0: the weakest release"),
        ({"release_shift": 0.0}, "link 0: the shift of this release"),
    ],
)
def test_a_predecessor_with_false_sums_is_refused(change, words):
    report = after_a_lie(lifetime=change)
    assert failed_lines(report) == [6]
    assert words in report.lines[5].detail


def test_gaps_between_versions_are_refused():
    issuer = Issuer(KEY)
    issuer.issue()
    issuer.issue(edit={"version": 3, "parent": {"version": 2}})
    refused(report_on(issuer), 6, "is not version 1, the last one published")
    issuer = Issuer(KEY)
    parent = {"version": 4, "weights_sha256": "0" * 64, "commitment": None}
    issuer.issue(edit={"version": 5, "parent": parent}, evidence_edit={"parent": None})
    refused(report_on(issuer), 6, "does not start from version 0")


def test_a_discarded_draw_has_the_version_it_would_have_had():
    issuer = Issuer(KEY)
    for kind in ("tr-proved", "discarded-proved", "discarded-proved", "tr-proved"):
        issued = issuer.issue(kind)
    assert [entry.predicate.version for entry in issuer.chain] == [1, 2, 2, 2]
    assert report_on(issuer, issued).verified


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"regularisation": 0.02}, "changes the λ"),
        ({"anchor_sha256": "1" * 64}, "changes the anchor"),
        ({"dimension": 999}, "changes the number of weights"),
    ],
)
def test_another_objective_along_the_chain_is_refused(change, words):
    report = after_a_lie(objective=change)
    assert failed_lines(report) == [6]
    assert words in report.lines[5].detail


def test_a_retrain_may_change_the_objective_and_what_follows_must_keep_it():
    issuer = Issuer(KEY, family="mlp")
    issuer.issue("tr-conditional")
    issuer.issue("retrain-proved", edit={"objective": {"regularisation": 0.5}})
    assert report_on(issuer).verified
    issuer.issue("tr-conditional")
    refused(report_on(issuer), 6, "link 2 changes the λ without a retrain")


def test_a_discarded_retrain_changes_no_objective():
    issuer = Issuer(KEY, family="mlp")
    issuer.issue("tr-conditional")
    lifetime = issuer.lifetime("discarded-conditional", shift=0.0, failure=0.0)
    edit = {
        "mechanism": "discarded",
        "objective": {"regularisation": 0.5},
        "lifetime": lifetime.model_dump() | {"running_residual": 2.0**-84},
    }
    issuer.issue("retrain-proved", edit=edit)
    assert report_on(issuer).verified, report_on(issuer)
    issuer.issue("tr-conditional")
    assert report_on(issuer).verified, report_on(issuer)


def test_reused_ids_files_and_deletion_sets_are_refused():
    issuer = Issuer(KEY)
    issuer.issue()
    issuer.issue(edit={"certificate_id": uuid7(1)}, evidence_edit={"certificate_id": uuid7(1)})
    refused(report_on(issuer), 6, "the same id")
    issuer = Issuer(KEY)
    first = issuer.issue()
    issuer.issue(edit={"deletion_set": first.predicate.deletion_set.model_dump()})
    refused(report_on(issuer), 6, "the same deletion set")


def test_an_erasure_that_retains_all_the_data_is_refused():
    issuer = Issuer(KEY)
    kept = issuer.issue().predicate.objective.retained_data_commitment
    issuer.issue(edit={"objective": {"retained_data_commitment": kept}})
    refused(report_on(issuer), 6, "retains the same data")


def test_dates_that_run_backwards_are_refused():
    issuer = Issuer(KEY)
    first = issuer.issue()
    issuer.issue(edit={"issued_at": first.predicate.issued_at - timedelta(seconds=1)})
    refused(report_on(issuer), 6, "link 1 is dated before link 0")


def test_certificates_logged_in_another_order_are_refused():
    issuer = Issuer(KEY)
    for _ in range(3):
        issued = issuer.issue()
    leaves = [issuer.log.node(0, place) for place in range(issuer.log.size)]
    issuer.log = MemoryTree([*leaves[:3], leaves[4], leaves[3], leaves[5]])
    issuer.chain[0].index, issuer.chain[1].index = 4, 3
    refused(report_on(issuer, issued), 7, "not logged in the chain's order")


def test_a_predecessor_that_was_never_logged_is_refused():
    issuer = Issuer(KEY)
    issuer.issue(log_it=False)
    issuer.log.append(leaf_hash(b"another leaf" * 3))
    issued = issuer.issue()
    refused(report_on(issuer, issued), 7, "predecessor 0 of the pack is not at place")


def test_a_certificate_of_format_2_in_a_pack_of_format_1_is_refused():
    """It would hide where the earlier certificates were logged."""
    issuer = Issuer(KEY)
    issuer.issue()
    issued = issuer.issue()
    refused(
        verify(pack_v1(issuer), weights=issued.weights),
        7,
        "the places of the earlier certificates are missing",
    )


def test_a_sum_over_format_1_must_say_so_and_no_other_may():
    issuer = Issuer(KEY)
    issue_v1(issuer)
    issued = issuer.issue()
    assert issued.predicate.lifetime.assurance == "conditional"
    assert "floating-point-noise" in issued.predicate.guarantee.assumptions
    assert report_on(issuer).verified
    for change, line in (
        ({"guarantee": {"assumptions": ("declared-origins", "random-generator")}}, 6),
        ({"lifetime": {"assurance": "proved"}}, 6),
    ):
        lying = Issuer(KEY)
        issue_v1(lying)
        lying.issue(edit=change)
        assert failed_lines(report_on(lying)) == [line]
    pure = Issuer(KEY)
    pure.issue(edit={"guarantee": {"assumptions": issued.predicate.guarantee.assumptions}})
    refused(report_on(pure), 6, "the sum includes no release of format 1")


def test_after_a_retrain_format_1_no_longer_counts():
    issuer = Issuer(KEY)
    issue_v1(issuer)
    issuer.issue("retrain-proved")
    issued = issuer.issue("tr-proved")
    assert issued.predicate.lifetime.assurance == "proved"
    assert report_on(issuer).verified
    recent = verify(issuer.pack(predecessors=issued.earlier[1:]), weights=issued.weights)
    assert recent.verified


def test_a_certificate_of_format_1_cannot_follow_one_of_format_2():
    issuer = Issuer(KEY)
    issuer.issue()
    issue_v1(issuer)
    report = report_on(issuer, evidence=None)
    refused(report, 6, "older format")


def test_a_chain_of_several_releases_of_either_format_verifies_with_what_is_left_of_it():
    issuer = Issuer(KEY)
    issue_v1(issuer)
    issue_v1(issuer)
    issued = issuer.issue("tr-proved")
    assert report_on(issuer).verified
    refused(
        verify(issuer.pack(predecessors=issued.earlier[1:]), weights=issued.weights),
        6,
        "earlier links are missing",
    )


class Rotated:
    """An issuer whose key was rotated after its first certificate, and a thief who holds the old one."""

    def __init__(self) -> None:
        self.issuer = Issuer(KEY)
        self.before = self.issuer.issue()
        self.old_pack = self.issuer.pack()
        self.old, self.new = self.issuer.key, SigningKey.generate()
        size = self.issuer.log.size
        self.issuer.key = self.new
        self.keys = KeySet(
            keys=(PublicKey.of(self.old, valid_until=size + 1), PublicKey.of(self.new, valid_from=size))
        )
        self.issuer.keys = self.keys

    def verify(self, pack: Pack, issued: Issued, **inputs: Any) -> VerificationReport:
        return verify(pack, weights=issued.weights, keys=self.keys, **inputs)


def test_after_a_rotation_old_and_new_certificates_verify_under_a_head_of_the_new_key():
    rotated = Rotated()
    assert rotated.verify(rotated.issuer.pack(rotated.before), rotated.before).verified
    after = rotated.issuer.issue()
    assert rotated.verify(rotated.issuer.pack(after), after).verified
    assert rotated.verify(rotated.issuer.pack(rotated.before), rotated.before).verified


def test_a_pack_of_before_the_rotation_must_be_downloaded_again_or_proved_to_be_a_prefix():
    rotated = Rotated()
    refused(rotated.verify(rotated.old_pack, rotated.before), 7, "retired key")
    assert (
        "Download the pack and the keys again"
        in rotated.verify(rotated.old_pack, rotated.before).lines[6].detail
    )
    assert verify(rotated.old_pack, weights=rotated.before.weights).verified, (
        "its own keys know of no rotation"
    )
    size = rotated.issuer.log.size
    rotated.issuer.issue()
    newer = rotated.issuer.head()
    path = tuple(step.hex() for step in rotated.issuer.log.consistency_proof(size))
    known = EarlierHead(checkpoint=newer, path=path)
    assert rotated.verify(rotated.old_pack, rotated.before, since=known.to_bytes()).verified
    answer = LogConsistency(old_size=size, new_size=size + 1, path=path, checkpoint=newer)
    assert rotated.verify(rotated.old_pack, rotated.before, since=answer.to_bytes()).verified
    refused(rotated.verify(rotated.old_pack, rotated.before, since=newer.encode()), 7, "nothing shows")


@pytest.mark.parametrize(
    "case", ["inside its window", "at the shared place", "beyond its window", "another log"]
)
def test_a_stolen_retired_key_proves_nothing_new(case):
    rotated = Rotated()
    thief = Issuer(rotated.old, strangers=1 if case == "another log" else 3)
    thief.keys = rotated.keys
    if case in ("at the shared place", "beyond its window"):
        thief.log.append(leaf_hash(bytes.fromhex(rotated.before.envelope.digest)))
    if case == "beyond its window":
        thief.log.append(leaf_hash(b"a leaf"))
    forged = thief.issue()
    report = rotated.verify(thief.pack(forged), forged)
    assert 7 in failed_lines(report)
    detail = report.lines[6].detail
    assert "retired key" in detail or "valid for places" in detail
    # an honest newer head does not extend the forged one
    rotated.issuer.issue()
    rotated.issuer.issue()
    size, head = rotated.issuer.log.size, rotated.issuer.head()
    path = rotated.issuer.log.consistency_proof(min(thief.log.size, size))
    known = EarlierHead(checkpoint=head, path=tuple(step.hex() for step in path))
    assert 7 in failed_lines(rotated.verify(thief.pack(forged), forged, since=known))


def test_a_head_of_a_retired_key_is_worth_nothing_to_vouch_for_another():
    rotated = Rotated()
    size = rotated.issuer.log.size
    same = sign_tree_head(TreeHead("lethe.example/log", size, rotated.issuer.log.root()), rotated.old)
    refused(rotated.verify(rotated.old_pack, rotated.before, since=same.encode()), 7, "retired key")
