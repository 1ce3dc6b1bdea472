"""What the demo promises holds whatever noise is drawn, and its forgeries and charts are what they claim."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from bench import demo, demo_charts, demo_forgery
from bench.demo_data import IMAGES_PER_WRITER, Digits, digits, distorted_copies, features
from bench.demo_membership import Attack, objective_of
from bench.demo_timing import Timing, Way
from lethe.certificate.cli import run_verify
from lethe.certificate.privacy import sigma_for
from worker.engine.trust_region import train

GOLDEN = Path(__file__).parents[1] / "golden" / "v2"


@pytest.fixture(scope="module")
def data() -> Digits:
    return digits()


@pytest.mark.parametrize("version", [1, 2])
def test_no_noise_takes_the_score_below_what_the_demo_promises(data: Digits, version: int) -> None:
    """The probability is below 1 in 10⁹.

    A release is the retrained weights plus noise, and plus errors that are bounded. A row is misread only if
    this changes one of its margins by more than the margin. If the score falls below the promise, then more
    than k rows are misread, so at least one is not among the k most fragile ones. The union bound over these
    other rows and all wrong digits limits the probability.
    """
    erased = data.first if version == 1 else data.erased
    rows = data.train.at(~data.train.of(erased))
    objective = objective_of(rows, lam=demo.LAMBDA, classes=demo.CLASSES)
    retrained = objective.unflatten(train(objective, target=demo.TARGET).w)
    inputs, labels = features(data.holdout.images).astype(np.float64), data.holdout.labels
    logits = inputs @ retrained["weight"].numpy().T + retrained["bias"].numpy()

    sigma = sigma_for(epsilon=demo.EPSILON, delta=demo.DELTA, distance=demo.TARGET)
    lengths = np.sqrt(1 + (inputs**2).sum(axis=1))  # with the bias
    errors = np.sqrt(2) * lengths * 2 * demo.TARGET  # of the release and of this retraining
    rounding = sigma / 8 * (1 + np.abs(inputs).sum(axis=1))  # two weights, half a step of the grid each
    margins = logits[np.arange(len(labels)), labels][:, None] - logits - (errors + rounding)[:, None]
    margins[np.arange(len(labels)), labels] = np.inf
    tolerated = int((1 - demo.PROMISED_F1 / 100) * len(labels))
    assert (margins <= 0).any(axis=1).sum() <= tolerated
    misread = norm.sf(margins / (np.sqrt(2) * lengths * sigma)[:, None]).sum(axis=1)
    assert np.sort(misread)[: len(labels) - tolerated].sum() < 1e-9


def test_the_group_is_biased_and_nobody_asks_twice(data: Digits) -> None:
    assert not set(data.first) & set(data.group)
    counts = np.bincount(data.train.labels[data.train.of(data.group)], minlength=10)
    assert counts[[0, 7]].sum() > 0.8 * counts.sum()
    assert len(data.retained.labels) == len(data.train.labels) - data.train.of(data.erased).sum()
    assert not set(data.holdout.writers) & set(data.train.writers)


def test_copies_belong_to_the_writer_of_the_original(data: Digits) -> None:
    few = data.train.at(np.arange(len(data.train.labels)) < 5)
    copies = distorted_copies(few, 3)
    assert copies.writers.tolist() == 3 * few.writers.tolist()
    assert copies.labels.tolist() == 3 * few.labels.tolist()
    np.testing.assert_array_equal(copies.images[:5], few.images)
    assert (copies.images[5:10] != few.images).any()


def test_a_writer_has_a_few_images_of_one_digit(data: Digits) -> None:
    _, counts = np.unique(data.train.writers, return_counts=True)
    assert counts.max() == IMAGES_PER_WRITER
    assert all(
        writer.split("-")[1] == str(label)
        for writer, label in zip(data.train.writers, data.train.labels, strict=True)
    )


def test_every_forgery_is_refused_for_its_own_reason(tmp_path: Path) -> None:
    release, other = GOLDEN / "tr-proved", tmp_path / "other.safetensors"
    content = bytearray((release / "model.safetensors").read_bytes())
    content[-2] ^= 1
    other.write_bytes(content)
    forgeries = demo_forgery.try_forgeries(
        pack=release / "pack.json",
        model=release / "model.safetensors",
        keys=GOLDEN / "keys.json",
        other_model=other,
        folder=tmp_path,
    )
    assert [forgery.verified for forgery in forgeries] == [False] * 4
    assert [forgery.refusals[0].split(":")[0] for forgery in forgeries] == ["check 3"] * 2 + ["check 1"] * 2
    assert "did not sign" in forgeries[2].refusals[0]
    assert "unknown key" in forgeries[3].refusals[0]


def test_the_short_report_keeps_every_check_and_both_sides_of_the_verdict() -> None:
    release, report = GOLDEN / "tr-proved", list[str]()
    assert run_verify(pack=release / "pack.json", keys=GOLDEN / "keys.json", write=report.append) == 0
    short = demo.shorten(report)
    assert [line.split(".")[0] for line in short[:8]] == [
        "✓ 1",
        "✓ 2",
        "– 3",
        *(f"✓ {n}" for n in range(4, 8)),
        "– 8",
    ]
    assert max(map(len, short[:8])) < 90
    assert short[8].startswith("VERIFIED")
    assert any(line.startswith("  + ") for line in short)
    assert any(line.startswith("  - ") for line in short[short.index("It does not prove:") :])


def test_an_attack_that_cannot_tell_models_apart_is_guessing() -> None:
    scores = np.array([0.5, -1.0, 2.0, 0.0])
    assert Attack(scores, scores).auc == 0.5
    assert Attack(scores + 10, scores).auc == 1.0
    false, true = Attack(scores + 10, scores).curve()
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)
    assert true[4] == 1
    assert false[4] == 0


def test_charts_take_every_colour_from_the_page() -> None:
    attack = Attack(np.array([1.0, 2.0]), np.array([0.0, 1.5]))
    way = Way("Lethe unlearns", 0.5, 3.0, 1e-3)
    descent = demo_charts.Descent("x", [1, 2], [1e-1, 1e-3])
    for chart in (
        demo_charts.scores_chart([demo_charts.Score("version 0", 98.0, 98.5)], 97),
        demo_charts.descent_chart([descent, descent], 1e-2),
        demo_charts.attack_chart(attack, attack),
        demo_charts.timing_chart(Timing(9, 1, 2, (way,), 3, 4, (way,))),
    ):
        assert "var(--lethe)" in chart
        assert "<svg" in chart
        assert "#000000" not in chart
        assert "#ffffff" not in chart
