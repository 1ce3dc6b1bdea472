"""Missing links, uncounted draws, understated sums and rewritten logs are refused by name."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lethe.certificate.chain import Link, running_sum
from lethe.certificate.keys import SigningKey
from lethe.certificate.merkle import MemoryTree, leaf_hash
from lethe.certificate.pack import EarlierHead
from lethe.certificate.tree_head import TreeHead, sign_tree_head
from lethe.certificate.verify import verify
from tests.unit.certificate.certificate_cases import Issuer
from tests.unit.certificate.certificate_evidence_cases import uuid7
from tests.unit.certificate.certificate_reports import KEY, failed_lines, refused, report_on, resigned


@pytest.fixture
def chain() -> Issuer:
    issuer = Issuer(KEY)
    for kind in ("tr-proved", "discarded-proved", "tr-heuristic", "tr-proved"):
        issuer.issue(kind)
    return issuer


def test_a_skipped_link_is_refused(chain):
    links = chain.chain[-1].earlier
    last = chain.chain[-1]
    for missing in range(len(links)):
        pack = chain.pack(predecessors=links[:missing] + links[missing + 1 :])
        refused(verify(pack, weights=last.weights), 6, "")
    refused(verify(chain.pack(predecessors=[]), weights=last.weights), 6, "contains no earlier one")
    refused(verify(chain.pack(predecessors=links[1:]), weights=last.weights), 6, "earlier links are missing")
    report = verify(chain.pack(predecessors=links[::-1]), weights=last.weights)
    assert failed_lines(report) == [6, 7]
    assert "as its predecessor" in report.lines[5].detail
    assert "chain's order" in report.lines[6].detail


def test_an_uncounted_discarded_draw_is_refused():
    issuer = Issuer(KEY)
    issuer.issue("tr-proved")
    honest = issuer.issue("discarded-proved")
    before = issuer.chain[0].predicate.lifetime
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
    refused(report_on(resigned("tr-proved", lifetime={"cap": 0.9})), 6, "exceeds the cap")
    refused(report_on(resigned("tr-proved", lifetime={"running_residual": 0.0})), 6, "residuals")
    refused(report_on(resigned("tr-conditional", lifetime={"assurance": "proved"})), 6, "weakest")
    refused(report_on(resigned("tr-heuristic", lifetime={"epsilon_total": 1.0})), 6, "heuristic")


def test_a_retrain_resets_the_sum():
    issuer = Issuer(KEY)
    for kind in ("tr-proved", "tr-proved", "retrain-proved", "tr-proved"):
        issued = issuer.issue(kind)
    lifetime = issued.statement.predicate.lifetime
    assert lifetime.running_shift == lifetime.release_shift
    assert report_on(issuer).verified
    # Only the links since the retrain are needed.
    assert verify(issuer.pack(predecessors=issued.earlier[2:]), weights=issued.weights).verified
    refused(verify(issuer.pack(predecessors=[]), weights=issued.weights), 6, "no earlier one")


def test_a_discarded_retrain_resets_nothing():
    issuer = Issuer(KEY)
    release = Link("", issuer.issue("tr-proved").statement)
    retrain = Link("", issuer.issue("retrain-proved").statement)
    predicate = retrain.predicate.model_copy(update={"mechanism": "discarded"})
    discarded = Link("", retrain.statement.model_copy(update={"predicate": predicate}))
    assert running_sum([release, discarded]).shift == release.release_shift
    assert running_sum([release, retrain]).shift == 0


def test_a_hundred_releases_extended_one_by_one_agree_with_the_sum_of_all():
    issuer = Issuer(KEY)
    for _ in range(100):
        issuer.issue("tr-conditional")
    assert report_on(issuer, evidence=None).verified


def test_a_predecessor_of_another_model_or_signer_is_refused(chain):
    foreign = Issuer(SigningKey.generate())
    foreign.issue()
    last, links = chain.chain[-1], chain.chain[-1].earlier
    foreign.chain[0].index = links[0].index
    report = verify(chain.pack(predecessors=[foreign.chain[0], *links[1:]]), weights=last.weights)
    assert failed_lines(report) == [6, 7]
    assert "unknown key" in report.lines[5].detail
    edited = links[0].envelope.raw.replace(b'"payloadType"', b' "payloadType"', 1)
    pack = chain.pack().model_dump()
    pack["predecessors"][0]["envelope"] = base64.b64encode(edited).decode()
    report = verify(json.dumps(pack).encode(), weights=last.weights)
    assert failed_lines(report) == [6, 7]
    assert "predecessor" in report.lines[5].detail


def test_links_must_count_up_by_one_and_be_of_one_model():
    refused(report_on(resigned("tr-proved", lifetime={"index": 5})), 6, "a link is missing")
    issuer = Issuer(KEY)
    issuer.issue()
    issuer.issue(edit={"model_id": uuid7(8)})
    refused(report_on(issuer), 6, "another model")


def test_a_parent_that_contradicts_the_chain_is_refused():
    refused(report_on(resigned("tr-proved", parent={"weights_sha256": "0" * 64})), 6, "parent's weights")
    older = {"version": 0, "weights_sha256": None, "commitment": "0" * 64}
    refused(report_on(resigned("tr-proved", parent=older, version=1), evidence=None), 6, "is older")


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
    refused(report_on(chain, last, since=kept.encode()), 7, "nothing shows")


def test_since_takes_a_bare_tree_head_or_one_with_its_proof(chain):
    last = chain.chain[-1]
    bare = chain.head(4)
    path = tuple(step.hex() for step in chain.log.consistency_proof(4))
    whole = EarlierHead(checkpoint=bare, path=path)
    pack = chain.pack(consistency=())
    assert verify(pack, weights=last.weights, since=whole.to_bytes()).verified
    refused(verify(pack, weights=last.weights, since=bare.encode()), 7, "nothing shows")
    assert verify(chain.pack(), weights=last.weights, since=bare.encode()).verified
    foreign = sign_tree_head(TreeHead("other.example/log", 4, chain.log.root(4)), KEY)
    refused(report_on(chain, since=foreign.encode()), 7, "another log")
    refused(report_on(chain, since=b"\xff\xfe garbage"), 7, "not a signed tree head")
