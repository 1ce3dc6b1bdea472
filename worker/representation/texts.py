"""Texts: reads a tokenizer and turns texts into token ids."""

import json
from typing import Final

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer

from lethe.certificate.representation import TextInput
from worker.representation.errors import RepresentationError
from worker.representation.limits import Limits

TOKEN_INPUTS: Final = ("input_ids", "attention_mask", "token_type_ids")
_MAX_ID: Final = 2**31 - 1


class TextProblem(Exception):
    """A text cannot be used. The message says why, without anything of its content."""


class TextReader:
    """Turns one text into its token ids, attention mask and token types: int64, (3, tokens).

    Special tokens are added as the tokenizer says. Texts are cut off at `max_length` tokens. There is no
    padding, because texts run one at a time.
    """

    def __init__(self, declared: TextInput, tokenizer: bytes, limits: Limits) -> None:
        self._limits = limits
        self._tokenizer = _load(tokenizer, declared.max_length, limits)
        self.largest_id = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=0)

    def read(self, data: memoryview) -> npt.NDArray[np.int64]:
        """Return the tokens of one UTF-8 text, or raise `TextProblem`."""
        if len(data) > self._limits.text_bytes:
            raise TextProblem(f"the text is longer than {self._limits.text_bytes:,} bytes")
        try:
            text = str(data, "utf-8")
        except UnicodeDecodeError:
            raise TextProblem("the text is not valid UTF-8") from None
        encoding = self._encode(text)
        if not encoding.ids:
            raise TextProblem("the text has no tokens")
        return np.array([encoding.ids, encoding.attention_mask, encoding.type_ids], np.int64)

    def _encode(self, text: str) -> Encoding:
        try:
            return self._tokenizer.encode(text)
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException:  # a panic in the tokenizer's Rust code is not an Exception
            raise TextProblem("the tokenizer fails on this text") from None


def _load(tokenizer: bytes, max_length: int, limits: Limits) -> Tokenizer:
    """Return the tokenizer, or raise `RepresentationError`."""
    if len(tokenizer) > limits.tokenizer_bytes:
        raise RepresentationError([f"the tokenizer is larger than {limits.tokenizer_bytes:,} bytes"])
    content = _parse(tokenizer)
    _check_model(content)
    try:
        loaded = Tokenizer.from_str(tokenizer.decode())
        loaded.no_padding()
        special = loaded.num_special_tokens_to_add(is_pair=False)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException:  # a panic in the tokenizer's Rust code is not an Exception
        raise RepresentationError(["the tokenizers library cannot load the tokenizer"]) from None
    if special >= max_length:
        raise RepresentationError(
            [
                f"max_length is {max_length}, but the tokenizer adds {special} special tokens to each text: "
                "no token of the text would be left"
            ]
        )
    loaded.enable_truncation(max_length)
    return loaded


def _parse(tokenizer: bytes) -> dict[str, object]:
    try:
        content = json.loads(tokenizer.decode())
    except (ValueError, RecursionError):
        raise RepresentationError(["the tokenizer is not a JSON document, or it is truncated"]) from None
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise RepresentationError(
            ["the tokenizer is not a tokenizer.json of the tokenizers library: it has no model"]
        )
    return content


def _check_model(content: dict[str, object]) -> None:
    """Refuse models that draw at random, and token ids that no graph could look up."""
    model = content["model"]
    assert isinstance(model, dict)
    if model.get("dropout"):
        raise RepresentationError(
            ["the tokenizer drops merges at random (model.dropout), so the same text has different tokens"]
        )
    vocabulary = model.get("vocab")
    ids = vocabulary.values() if isinstance(vocabulary, dict) else ()
    if any(not isinstance(number, int) or not 0 <= number <= _MAX_ID for number in ids):
        raise RepresentationError(["the tokenizer's vocabulary has a token id that is not a small integer"])
