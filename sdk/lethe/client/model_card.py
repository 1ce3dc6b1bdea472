"""Model cards: a README in the style of Hugging Face, made from a certificate's pack.

Every sentence comes from the certificate, from its fixed vocabulary, or from a response of the service.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from lethe.certificate.envelope import from_base64
from lethe.certificate.envelope import parse as parse_envelope
from lethe.certificate.onnx_file import OUTPUTS, can_export
from lethe.certificate.pack import AnyPack
from lethe.certificate.predicate import Predicate
from lethe.certificate.privacy import loss_exceeds
from lethe.certificate.records import printable
from lethe.certificate.representation import CertifiedRepresentation, ImageInput, TextInput, VectorInput
from lethe.certificate.statement import AnyPredicate, AnyStatement, parse
from lethe.certificate.verify import DOES_NOT_PROVE, VerificationReport, verify
from lethe.certificate.vocabulary import ASSURANCES
from lethe.client.errors import ReleaseUnavailable
from lethe.client.releases import require_verified
from lethe.client.responses import Evaluation, Ledger, Scores, Version

_MECHANISMS = {
    "tr": "It was computed by trust-region Newton steps from the version before it, without the erased "
    "records, and random noise was added.",
    "retrain": "It was retrained from the anchor on the remaining records, and random noise was added.",
    "tr-paper": "It was computed with the published baseline tr-paper, and random noise was added.",
    "guo2020": "It was computed with the published baseline of Guo et al. (2020), and random noise was "
    "added.",
    "zhang2024": "It was computed with the published baseline of Zhang et al. (2024), and random noise was "
    "added.",
}
_CLASSIFIERS = ("softmax", "logistic")
_PIPELINES = {"image": "image-classification", "text": "text-classification"}
_WEIGHTS_PROGRAM = ("from safetensors.numpy import load_file", "", 'weights = load_file("model.safetensors")')
_TOKENIZE = (
    'tokenizer = Tokenizer.from_file("tokenizer.json")',
    "tokenizer.no_padding()",
    "tokenizer.enable_truncation({max_length})",
    'tokens = tokenizer.encode("replace this text")',
    "ids, mask, types = tokens.ids, tokens.attention_mask, tokens.type_ids",
    'inputs = {{"input_ids": ids, "attention_mask": mask, "token_type_ids": types}}',
    "feed = {{i.name: np.array([inputs[i.name]], np.int64) for i in session.get_inputs()}}",
)


def render_card(
    pack: AnyPack,
    *,
    version: Version | None = None,
    ledger: Ledger | None = None,
    evaluation: Evaluation | None = None,
) -> str:
    """Return the model card of a certified version as Markdown with a YAML header.

    The pack is verified first, under the keys that came with it. `version` says whether the version is still
    the current one, `ledger` adds what is left of the lifetime budget, and `evaluation` adds scores on the
    holdout. Raise `NotVerified` if the pack does not verify, and `ReleaseUnavailable` if there is no model to
    describe or if the evaluation is about another version.
    """
    report = verify(pack)
    require_verified(report, "the certificate")
    envelope = parse_envelope(from_base64(pack.envelope))
    statement = parse(envelope.payload)
    predicate = statement.predicate
    if predicate.mechanism == "discarded":
        raise ReleaseUnavailable(
            "this certificate is about a draw that was destroyed, so there is no model to describe"
        )
    if evaluation is not None and (evaluation.model, evaluation.version) != (
        predicate.model,
        predicate.version,
    ):
        raise ReleaseUnavailable(
            f"the evaluation is about version {evaluation.version} of {evaluation.model}, and the "
            f"certificate is about version {predicate.version} of {predicate.model}"
        )
    sections = [
        _header(predicate, envelope.digest),
        f"# {predicate.model}, version {predicate.version}\n\n{_summarise(predicate, version)}",
        _section("What this model is", _describe_model(predicate)),
        _section("Certificate", _describe_certificate(statement, envelope.digest)),
        _section("What ε, δ and σ mean here", _describe_numbers(predicate)),
        _section("Unit of privacy", _describe_unit(predicate)),
        _section("Assurance and assumptions", _describe_assurance(predicate, report)),
        _section("What is not covered", _bullets(predicate.guarantee.limit_texts)),
        _section("Representation", _describe_representation(representation_of(predicate))),
        _section("Lifetime budget", _describe_budget(predicate, ledger)),
    ]
    if evaluation is not None and evaluation.result is not None:
        sections.append(_section("Evaluation", _describe_evaluation(evaluation)))
    sections += [
        _section("How to verify it", _describe_verification(predicate)),
        _section("How to load it", _describe_loading(predicate)),
    ]
    return "\n\n".join(sections) + "\n"


def representation_of(predicate: AnyPredicate) -> CertifiedRepresentation | None:
    """Return the representation that a certificate names, or None."""
    return predicate.objective.representation if isinstance(predicate, Predicate) else None


def escape(text: object) -> str:
    r"""Return text from a certificate as one line of Markdown that shows exactly this text.

    >>> escape("trained on <b>x</b> [here](y), see a_b*")
    'trained on \\<b\\>x\\</b\\> \\[here\\](y), see a\\_b\\*'
    """
    return re.sub(r"([\\`*_\[\]<>|#&~$])", r"\\\1", printable(text))


def yaml_value(value: str | float | None) -> str:
    """Return a scalar as YAML. Numbers in scientific notation get the point that YAML 1.1 requires.

    >>> yaml_value(1e-05), yaml_value(0.8), yaml_value("v: 1"), yaml_value(None)
    ('1.0e-05', '0.8', '"v: 1"', 'null')
    """
    if isinstance(value, float):
        mantissa, exponent, power = repr(value).partition("e")
        return f"{mantissa}.0e{power}" if exponent and "." not in mantissa else repr(value)
    return json.dumps(value, ensure_ascii=False)


# ---- The parts of a card ----


def _header(predicate: AnyPredicate, digest: str) -> str:
    """Return the YAML header. It names no licence, because a certificate does not state one for the model."""
    family, represented = predicate.objective.family, representation_of(predicate)
    lines = ["---"]
    if can_export(predicate):
        lines.append("library_name: onnx")
    kind = "" if represented is None else represented.declaration.input.kind
    if family in _CLASSIFIERS and kind in _PIPELINES:
        lines.append(f"pipeline_tag: {_PIPELINES[kind]}")
    lines += ["tags:", "- machine-unlearning", "- differential-privacy", "- lethe", "lethe:"]
    guarantee = predicate.guarantee
    facts: Mapping[str, str | float | None] = {
        "model": predicate.model,
        "version": predicate.version,
        "certificate_id": predicate.certificate_id,
        "certificate_sha256": digest,
        "assurance": guarantee.assurance,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "sigma": predicate.noise.sigma,
    }
    lines += [f"  {name}: {yaml_value(value)}" for name, value in facts.items()]
    return "\n".join([*lines, "---"])


def _summarise(predicate: AnyPredicate, version: Version | None) -> str:
    guarantee, erased = predicate.guarantee, _describe_erased(predicate)
    if guarantee.estimate is not None:
        summary = f"**Estimate, not a guarantee.** {erased} No ε and δ are certified for this release."
    else:
        summary = (
            f"{erased} The certificate of this release states ε = {guarantee.epsilon:g} and "
            f"δ = {guarantee.delta:g}, and its assurance is `{guarantee.assurance}`."
        )
    if version is not None and version.state != "current":
        summary += "\n\n**A newer version has replaced this one.** Its weights can no longer be downloaded."
    return summary


def _describe_erased(predicate: AnyPredicate) -> str:
    people = predicate.deletion_set.people
    if people == 0:
        return "This release added records to the training data and erased nobody."
    return (
        "This release erased 1 person from the model."
        if people == 1
        else (f"This release erased {people:,} people from the model.")
    )


def _section(title: str, lines: Sequence[str] | Iterator[str]) -> str:
    return f"## {title}\n\n" + "\n".join(lines)


def _bullets(sentences: Sequence[str]) -> list[str]:
    return [f"- {escape(sentence)}" for sentence in sentences]


def _describe_model(predicate: AnyPredicate) -> Iterator[str]:
    objective = predicate.objective
    yield f"A model of the family {escape(objective.family)} with {objective.dimension:,} parameters."
    yield _MECHANISMS[predicate.mechanism]
    yield ""
    strength = f"λ = {objective.regularisation:g}"
    yield f"- Training loss: {escape(objective.loss)}, plus (λ/2)·‖w − anchor‖² with {strength}."
    yield f"- Origin of the features, as the owner declared it: {escape(objective.origins.features)}"
    yield f"- Origin of the constants, as the owner declared it: {escape(objective.origins.constants)}"
    yield f"- Anchor, as the owner declared it: {escape(objective.origins.anchor)}"


def _describe_certificate(statement: AnyStatement, digest: str) -> Iterator[str]:
    predicate = statement.predicate
    yield "| | |"
    yield "|---|---|"
    yield f"| Certificate | `{predicate.certificate_id}` |"
    yield f"| SHA-256 of the signed certificate | `{digest}` |"
    yield f"| SHA-256 of the weights | `{statement.weights_sha256}` |"
    yield f"| Issued | {predicate.issued_at:%Y-%m-%d %H:%M %Z} |"
    yield f"| Compared with | {escape(predicate.guarantee.reference_text)} |"


def _describe_numbers(predicate: AnyPredicate) -> Iterator[str]:
    guarantee, claim = predicate.guarantee, predicate.guarantee.estimate or predicate.guarantee
    epsilon, delta = claim.epsilon, claim.delta
    assert epsilon is not None
    assert delta is not None
    if guarantee.estimate is not None:
        yield "No ε and δ are guaranteed. If the sampled constant is a true bound, then the following holds:"
        yield ""
    if epsilon == 0:
        yield (
            "- **ε = 0, δ = 0**: the erased records had no part in this version, so it reveals nothing about "
            "them."
        )
    else:
        yield (
            f"- **ε = {epsilon:g}**: someone who starts undecided whether the erased records were used can "
            f"become at most {_percent(1 / (1 + math.exp(-epsilon)))} sure from this version"
            f"{_exceptions(predicate, epsilon)}."
        )
        yield (
            f"- **δ = {delta:g}**: the probability of any answer computed from the file may exceed what ε "
            f"permits by at most {format_probability(delta)}."
        )
    yield (
        f"- **σ = {predicate.noise.sigma:g}**: random noise with this standard deviation was added to every "
        "parameter."
    )


def _describe_unit(predicate: AnyPredicate) -> Iterator[str]:
    yield "The unit of privacy is a person, with all of their records in the training data."
    if (people := predicate.deletion_set.people) > 1:
        yield f"The numbers above hold for the {people:,} people of this release together."


def _describe_assurance(predicate: AnyPredicate, report: VerificationReport) -> Iterator[str]:
    assurance = predicate.guarantee.assurance
    yield f"The assurance is **{assurance}**. {ASSURANCES[assurance]}"
    if not predicate.noise.data_independent:
        yield "The amount of noise was not fixed before the data was used."
    if predicate.format_version == 1:
        yield ""
        yield "This certificate is of format 1, whose noise was drawn in floating point. A known attack can"
        yield "distinguish such a file from its reference."
    yield ""
    yield from _bullets(report.rests_on)


def _describe_representation(represented: CertifiedRepresentation | None) -> Iterator[str]:
    if represented is None:
        yield "None. The model was fitted on the features as they were uploaded."
        return
    declaration = represented.declaration
    yield "A fixed, public function turns each raw row into the features of the model."
    yield ""
    yield f"- Origin, as declared: {escape(declaration.origin)}"
    yield f"- Licence, as declared: {escape(declaration.licence)}"
    yield f"- Input: {_describe_input(declaration.input)}"
    yield f"- SHA-256 of the ONNX graph: `{represented.graph_sha256}`"
    if represented.tokenizer_sha256 is not None:
        yield f"- SHA-256 of the tokenizer: `{represented.tokenizer_sha256}`"
    yield f"- How rows were kept apart: {escape(represented.row_check_text)}"


def _describe_input(row: VectorInput | ImageInput | TextInput) -> str:
    if isinstance(row, VectorInput):
        return f"a vector of {row.width:,} numbers."
    if isinstance(row, TextInput):
        return f"a text of at most {row.max_length:,} tokens. Longer texts are cut off."
    channels, height, width = row.shape
    steps = f"Pixels from 0 to 255 are multiplied by {row.scale:g}"
    steps += f", then {_numbers(row.mean)} is subtracted per channel" if row.mean else ""
    steps += f", then the result is divided by {_numbers(row.std)} per channel" if row.std else ""
    resized = "images of another size are refused" if row.resize == "none" else f"resized ({row.resize})"
    return f"an image of {channels} × {height} × {width} (channels, height, width), {resized}. {steps}."


def _describe_budget(predicate: AnyPredicate, ledger: Ledger | None) -> Iterator[str]:
    lifetime = predicate.lifetime
    if lifetime.epsilon_total is None:
        yield "The total ε of all releases since the last retraining is unknown, because one of them is an"
        yield "estimate."
    else:
        yield (
            "All releases since the last retraining together, this one included, have "
            f"ε = {lifetime.epsilon_total:.4g} at δ = {lifetime.delta:g}."
        )
    yield (
        "There is no cap." if lifetime.cap is None else f"The policy caps the total at ε = {lifetime.cap:g}."
    )
    if ledger is not None and ledger.releases_left is not None:
        count = ledger.releases_left
        left = "1 more release fits" if count == 1 else f"{count:,} more releases fit"
        yield f"According to the service, {left} before the model must be retrained."


def _describe_evaluation(evaluation: Evaluation) -> Iterator[str]:
    """Describe the released model alone. The retrained one has no noise, so its scores are left out."""
    result = evaluation.result
    assert result is not None
    yield f"Scores on {result.rows:,} holdout rows. The certificate does not cover these rows."
    yield ""
    yield "| score | this version |"
    yield "|---|---|"
    for label, name in (("F1 (micro)", "micro_f1"), ("loss", "loss"), ("RMSE", "rmse"), ("R²", "r_squared")):
        if (score := _score(result.current, name)) is not None:
            yield f"| {label} | {score:.4g} |"


def _describe_verification(predicate: AnyPredicate) -> Iterator[str]:
    yield "The distribution `lethe-unlearning` contains the verifier. It needs no connection to the service."
    yield "Get `keys.json` from the issuer, not from the place where you found this file:"
    yield ""
    option = "--onnx model.onnx" if can_export(predicate) else "--model model.safetensors"
    yield from ("```sh", f"lethe verify pack.json {option} --keys keys.json", "```", "")
    yield "Verification does not prove:"
    yield ""
    yield from _bullets(DOES_NOT_PROVE)


def _describe_loading(predicate: AnyPredicate) -> Iterator[str]:
    name = predicate.model
    if not can_export(predicate):
        yield "The weights are a safetensors file, which contains no code:"
        yield ""
        yield from ("```sh", f"lethe download {name} --to model.safetensors --pack pack.json", "```", "")
        yield from ("```python", *_WEIGHTS_PROGRAM, "```")
        return
    represented = representation_of(predicate)
    row = None if represented is None else represented.declaration.input
    yield "Any ONNX runtime serves the model. The metadata entry `lethe.outputs` lists its outputs, which are"
    yield f"{_names(OUTPUTS[predicate.objective.family])} unless the graph already uses these names."
    if isinstance(row, TextInput):
        yield "The export also writes `tokenizer.json`."
    yield ""
    yield from ("```sh", f"lethe export {name} --onnx model.onnx --pack pack.json", "```", "")
    yield from ("```python", *_onnx_program(row), "```")


def _onnx_program(row: VectorInput | ImageInput | TextInput | None) -> Iterator[str]:
    """Yield a program that runs one row through `model.onnx`."""
    yield from ("import json", "", "import numpy as np", "import onnxruntime")
    if isinstance(row, TextInput):
        yield "from tokenizers import Tokenizer"
    yield ""
    yield 'session = onnxruntime.InferenceSession("model.onnx")'
    yield 'outputs = json.loads(session.get_modelmeta().custom_metadata_map["lethe.outputs"])'
    if isinstance(row, TextInput):
        yield from (line.format(max_length=row.max_length) for line in _TOKENIZE)
    elif isinstance(row, ImageInput):
        sides = ", ".join(map(str, row.shape))
        yield f"rows = np.zeros((1, {sides}), np.float32)  # replace it with your image"
        yield "feed = {session.get_inputs()[0].name: rows}"
    else:
        yield "first = session.get_inputs()[0]"
        yield "rows = np.zeros((1, first.shape[1]), np.float32)  # replace it with your row"
        yield "feed = {first.name: rows}"
    yield "scores = session.run(outputs[-1:], feed)[0]"


# ---- Words and numbers ----


def _names(names: Sequence[str]) -> str:
    return " and ".join(f"`{name}`" for name in names)


def _numbers(values: Sequence[float]) -> str:
    return f"({', '.join(f'{value:g}' for value in values)})"


def _score(scores: Scores, name: str) -> float | None:
    value: float | None = getattr(scores, name)
    return value


def _percent(share: float) -> str:
    return "almost 100 %" if share > 0.994 else f"{100 * share:.0f} %"


def _exceptions(predicate: AnyPredicate, epsilon: float) -> str:
    """Say how often someone may become surer than ε allows. A baseline's publication does not say it."""
    if predicate.guarantee.assurance == "as-published":
        return ""
    probability = loss_exceeds(epsilon=epsilon, shift=predicate.lifetime.release_shift)
    probability += predicate.bound.failure_probability + predicate.noise.residual
    if probability == 0:
        return ""
    return f", except in at most {format_probability(probability)} such releases"


def format_probability(probability: float) -> str:
    """Return a small probability as "1 in N", rounded up so that "at most" stays true.

    >>> format_probability(1e-5), format_probability(1.612e-4), format_probability(0.3)
    ('1 in 100,000', '1 in 6,200', '30 %')
    """
    if probability > 0.05:
        return f"{math.ceil(100 * probability):d} %"
    inverse = 1 / probability
    unit = 10 ** (math.floor(math.log10(inverse)) - 1)
    return f"1 in {math.floor(inverse / unit * (1 + 1e-12)) * unit:,.0f}"
