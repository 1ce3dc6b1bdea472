"""The report of the demo: a single HTML file for a colleague.

It loads nothing, follows the reader's choice of light or dark, and prints well.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import demo_charts
from bench.demo_forgery import Forgery
from bench.demo_membership import SHADOW_PAIRS, Attack
from bench.demo_timing import COPIES, TARGET, Timing
from lethe.client.responses import AuditResult, EvaluationResult, Scores

STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #1b1f24; --soft: #57606a; --faint: #d0d7de;
  --panel: #f6f8fa; --lethe: #0b6e6e; --other: #9aa5b1; --target: #b35900; --bad: #b42318; }
@media (prefers-color-scheme: dark) { :root { --page: #12161b; --ink: #e6e9ed; --soft: #a3adb8;
  --faint: #3a424c; --panel: #1b2128; --lethe: #3fb8af; --other: #6b7683; --target: #f0a35e;
  --bad: #ff8f85; } }
@media print { :root { color-scheme: light; --page: #fff; --ink: #000; --soft: #444; --faint: #ccc;
  --panel: #f6f6f6; --lethe: #0b6e6e; --other: #9aa5b1; --target: #b35900; --bad: #b42318; }
  @page { size: A4; margin: 15mm; } h2 { break-after: avoid; }
  figure, tr, li { break-inside: avoid; } }
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, sans-serif; margin: 3rem auto; max-width: 46rem; padding: 0 1.25rem;
  color: var(--ink); background: var(--page); }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .75rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; }
.lead { font-size: 1.1rem; }
.key { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr));
  gap: .75rem; margin: 1.5rem 0; padding: 0; }
.key div { background: var(--panel); border: 1px solid var(--faint); border-radius: .5rem;
  padding: .7rem .9rem; }
.key dt { color: var(--soft); font-size: .85rem; } .key dd { margin: 0; font-size: 1.05rem; font-weight: 600;
  white-space: nowrap; }
figure { margin: 1.25rem 0; } figure svg { display: block; width: 100%; height: auto; }
.title { font-weight: 600; margin-bottom: .5rem; }
figcaption { color: var(--soft); font-size: .9rem; margin-top: .4rem; }
.table { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; margin: 1rem 0; }
td, th { border-bottom: 1px solid var(--faint); padding: .4rem .6rem .4rem 0; text-align: left;
  vertical-align: top; } td.n, th.n { text-align: right;
  font-variant-numeric: tabular-nums; padding-right: 1rem; }
.bad { color: var(--bad); font-weight: 600; white-space: nowrap; }
code, pre { font-family: ui-monospace, monospace; }
pre { background: var(--panel); border: 1px solid var(--faint); border-radius: .5rem; padding: .9rem;
  font-size: .8rem; white-space: pre-wrap; overflow-wrap: anywhere; }
footer { color: var(--soft); font-size: .9rem; margin-top: 3rem; border-top: 1px solid var(--faint);
  padding-top: 1rem; }
@media print { body { max-width: none; margin: 0; padding: 0; font-size: 10pt; } h2 { margin-top: 1.25rem; }
  figure svg { width: 125mm; } pre { font-size: 7.5pt; } }
"""
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Lethe: erased and certified</title>
<style>{style}</style>
</head>
<body>
<main>{sections}</main>
<footer>Written by <code>make demo</code>. Every figure was measured in that run.</footer>
</body>
</html>
"""


@dataclass(frozen=True)
class Erasure:
    """One batch: who left, the exact figures behind its certificate, and the scores of its version."""

    title: str
    people: int
    records: int
    evidence: dict[str, Any]
    scores: EvaluationResult


@dataclass(frozen=True)
class Story:
    """Everything the report tells."""

    people: int
    rows: int
    holdout: int
    before: EvaluationResult
    releases: Sequence[Erasure]
    target: float
    lam: float
    promised: float
    facts: Sequence[str]
    verification: Sequence[str]
    forgeries: Sequence[Forgery]
    audit: AuditResult
    attacks: tuple[Attack, Attack]
    timing: Timing


_RELIABLE = 0.9
"""With this probability or more, an audit is said to notice a deviation."""


def f1(scores: Scores) -> float:
    """Return the micro F1 in per cent."""
    return 100 * (scores.micro_f1 or 0)


def explain_audit(audit: AuditResult) -> str:
    """Say what a replay audit does, what it found, and what it would have found."""
    found = [power.alternative for power in audit.powers if power.power >= _RELIABLE]
    noticed = f" It would very likely have noticed each of these: {', '.join(found)}." if found else ""
    return (
        "The auditor repeats the computation on the remaining rows and tests whether the released weights "
        f"differ from it only by the stated noise. Verdict: {audit.verdict} (p = {audit.p_value:.2f}). A "
        f"p-value below {audit.level:g} raises an alarm. An honest release does so at most once in "
        f"{1 / audit.level:,.0f} audits.{noticed}"
    )


def explain_timing(timing: Timing) -> str:
    """Say how unlearning and retraining compare, and why."""
    unlearned, retrained, other = timing.few
    group_unlearned, group_retrained = timing.group
    assert group_unlearned.passes is not None
    assert group_retrained.passes is not None
    lesson = (
        "So for a group this large, you may as well retrain. "
        if group_unlearned.passes > 0.8 * group_retrained.passes
        else ""
    )
    return (
        f"For {timing.few_people} people, unlearning takes {unlearned.passes:.0f} passes over the data "
        f"and retraining {retrained.passes:.0f}. For the group of {timing.group_people}, it is "
        f"{group_unlearned.passes:.0f} and {group_retrained.passes:.0f}. {lesson}Retraining is not slow "
        "either, because Lethe retrains with the same second-order solver. The old weights save the "
        "first steps, but the last steps, which certify the target, are the same. You save more if fewer "
        "people leave or if λ is larger. With its default settings, scikit-learn takes "
        f"{other.seconds / unlearned.seconds:.0f} times as long as unlearning. It stops at a certified "
        f"distance of {other.distance:.2g}, where {TARGET:g} is needed, so its result could not be "
        "certified. On few rows, all of this takes less time than the bookkeeping around it. What you "
        "gain there is the certificate, not the time."
    )


def write(path: Path, story: Story) -> None:
    """Write the report."""
    sections = (
        _introduction(story),
        _worth(story),
        _solving(story),
        _certificate(story),
        _membership(story),
        _forged(story),
        _timing(story.timing),
        _verification(story),
    )
    path.write_text(PAGE.format(style=STYLE, sections="".join(sections)))


def _introduction(story: Story) -> str:
    last = story.releases[-1].scores
    before, after = story.attacks
    erased = sum(part.people for part in story.releases)
    figures = (
        ("people erased", f"{erased} of {story.people}"),
        ("F1 before → now", f"{f1(story.before.current):.1f} → {f1(last.current):.1f} %"),
        ("F1 if retrained", f"{f1(last.retrained):.1f} %"),
        ("an attack is right", f"{100 * before.auc:.0f} → {100 * after.auc:.0f} %"),
    )
    cells = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in figures)
    return (
        "<h1>Erased and certified</h1>"
        f'<p class="lead">A model reads handwritten digits. {erased} of the {story.people} people whose '
        "handwriting it learned from asked to be forgotten. Lethe removed them from the model and signed "
        "a certificate that anyone can check.</p><p>Deleting somebody’s rows is not enough, because the "
        "trained weights still depend on them. Lethe changes the weights until they are certified to be "
        "close to the weights that retraining without these people would give. Then it adds a little "
        "random noise, which hides the difference that remains.</p>"
        f'<dl class="key">{cells}</dl>'
        f"<p>The data are {story.rows:,} training images and {story.holdout:,} unseen ones from "
        "scikit-learn. The writers are made up, because the data set does not name them. The images "
        "become wavelet features, which come from formulas and contain nobody’s data.</p>"
    )


def _worth(story: Story) -> str:
    first, *_ = story.releases
    scores = [
        demo_charts.Score("version 0\nas trained", f1(story.before.current), f1(story.before.retrained))
    ]
    for version, part in enumerate(story.releases, 1):
        label = (
            f"version {version}\nwithout {part.people} people"
            if part is first
            else f"version {version}\nand {part.people} more"
        )
        scores.append(demo_charts.Score(label, f1(part.scores.current), f1(part.scores.retrained)))
    chart = demo_charts.scores_chart(scores, story.promised)
    group = story.releases[-1]
    drift = group.evidence["shift"]
    lost = " and ".join(
        f"{drift['erased'].get(digit, 0)} of {drift['original'][digit]} images of {name}"
        for digit, name in (("0", "zeros"), ("7", "sevens"))
    )
    return _section(
        "The model is still worth having",
        "<p>The score is F1, which is here the share of unseen images that the model reads correctly. "
        f"First {first.people} people left, one request each. Then a group of {group.people} left, who "
        f"mostly wrote zeros and sevens. It took along {lost}. This is how erasures come in life: rarely "
        "as a random sample.</p>",
        _figure(
            "Released and retrained models score alike",
            chart,
            "F1 of each version on images that no version was trained on. The released model loses what "
            "any model would lose without these people’s rows, and the noise costs next to nothing.",
        ),
    )


def _solving(story: Story) -> str:
    descents = [
        demo_charts.Descent(
            f"{part.people} people",
            [step["passes"] for step in part.evidence["trace"]],
            [step["gradient_norm"] / story.lam for step in part.evidence["trace"]],
        )
        for part in story.releases
    ]
    return _section(
        "How close it is to retraining",
        "<p>You choose a target distance Δ* in advance. The solver runs until the weights are certified "
        "to be within it. The certificate needs no estimate: for this kind of model, the distance is at "
        "most the length of the gradient divided by λ, the strength of the model’s regularisation.</p>",
        _figure(
            "The certified distance falls below the target",
            demo_charts.descent_chart(descents, story.target),
            "Certified distance to the retrained weights, step by step. The dashed line is the target.",
        ),
    )


def _certificate(story: Story) -> str:
    items = "".join(f"<li>{_text(fact)}</li>" for fact in story.facts)
    return _section("What the certificate says, in plain words", f"<ul>{items}</ul>")


def _membership(story: Story) -> str:
    before, after = story.attacks
    return _section(
        "Can somebody still tell that these people were learned?",
        f"<p>We attacked the models. The attackers know all the data. They trained {2 * SHADOW_PAIRS} "
        "models, each with a different half of the erased people, so they know how a model answers about "
        "each person in either case. They are then given somebody who was learned and somebody who was "
        "never seen, and have to say who is who.</p>",
        _figure(
            "After the erasure, the attack is guessing",
            demo_charts.attack_chart(before, after),
            "People whom the attack finds, against people whom it accuses wrongly. On the original model "
            f"it is right {100 * before.auc:.0f} times in 100. On the released model it is right "
            f"{100 * after.auc:.0f} times in 100, which is guessing. Its failure proves nothing by "
            "itself. The certificate is the proof, and it does not rest on this attack.",
        ),
    )


def _forged(story: Story) -> str:
    rows = "".join(
        f'<tr><td>{_text(forgery.name)}</td><td><span class="bad">✗ NOT VERIFIED</span><br>'
        f"{_text(forgery.refusals[0])}</td></tr>"
        for forgery in story.forgeries
    )
    return _section(
        "A forged release is refused",
        "<p>We forged this release in four ways and verified each forgery with the service’s published "
        "keys.</p>",
        '<div class="table"><table><thead><tr><th>the forgery</th><th>what <code>lethe verify</code> '
        f"says</th></tr></thead><tbody>{rows}</tbody></table></div>",
        "<p>A certificate cannot show that its issuer did the computation it describes. A replay audit by "
        f"somebody who has the remaining rows can. {_text(explain_audit(story.audit))}</p>",
    )


def _timing(timing: Timing) -> str:
    return _section(
        "How long it takes",
        "<p>The digits of this demo are too few for timings to mean something. So we joined each image "
        f"with {COPIES - 1} slightly turned, scaled and shifted copies, which gives {timing.rows:,} rows. "
        f"The {timing.few_people} people take {timing.few_rows:,} rows along, and the group of "
        f"{timing.group_people} takes {timing.group_rows:,}.</p>",
        _figure(
            "Seconds to get a model without these people",
            demo_charts.timing_chart(timing),
            "Medians of three runs, scikit-learn once. All run on one core.",
        ),
        f"<p>{_text(explain_timing(timing))}</p>",
    )


def _verification(story: Story) -> str:
    return _section(
        "The whole verification report",
        "<p>Anyone can repeat it with the verifier, which needs no service, no database and no PyTorch:</p>",
        "<pre>lethe verify pack.json --model model.safetensors --evidence evidence.json --keys "
        "keys.json</pre>",
        f"<pre>{_text(chr(10).join(story.verification))}</pre>",
    )


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{_text(title)}</h2>{''.join(parts)}</section>"


def _figure(title: str, svg: str, caption: str) -> str:
    heading = f'<div class="title">{_text(title)}</div>'
    return f"<figure>{heading}{svg}<figcaption>{_text(caption)}</figcaption></figure>"


def _text(text: str) -> str:
    return html.escape(text)
