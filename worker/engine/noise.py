"""Gaussian noise from a cryptographic keystream.

Privacy rests on these numbers being unpredictable, which a statistical generator with a small seed does not
give. Each draw takes a fresh 256-bit key from the operating system, expands it with AES-256 in counter mode,
and forgets it: the key is never returned, stored or logged, and `draw` offers no way to supply one.
"""

import math
import os
from typing import Protocol

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

_BLOCK = 2**16  # pairs made at a time


class ByteSource(Protocol):
    """Returns `count` fresh bytes at each call."""

    def __call__(self, count: int) -> bytes: ...


def draw(count: int) -> Tensor:
    """`count` independent standard normals, float64, from a key nobody will ever know. -> (count,)"""
    return gaussian(count, source=_keystream())


def gaussian(count: int, *, source: ByteSource) -> Tensor:
    """Standard normals by Box & Muller (1958) from 192 bits a pair. -> (count,)

    The radius uses all 128 bits of its words, small ones at full relative precision, so |z| reaches 13.3: the
    cut tail has probability 2⁻¹²⁹, nothing beside any δ that is certified, in as many dimensions as a disk
    holds. The angle uses 53 bits.
    """
    if count < 0:
        raise ValueError(f"count must not be negative, got {count}")
    values = np.empty(count + count % 2)
    for start in range(0, len(values), 2 * _BLOCK):
        pairs = min(_BLOCK, (len(values) - start) // 2)
        words = np.frombuffer(source(24 * pairs), dtype="<u8").reshape(3, pairs)
        low = (words[1].astype(np.float64) + 0.5) * 2.0**-128
        uniform = words[0].astype(np.float64) * 2.0**-64 + low  # in (0, 1]
        radius = np.sqrt(-2 * np.log(uniform))
        angle = (words[2] >> np.uint64(11)).astype(np.float64) * (2 * math.pi * 2.0**-53)
        values[start : start + pairs] = radius * np.cos(angle)
        values[start + pairs : start + 2 * pairs] = radius * np.sin(angle)
    return torch.from_numpy(values[:count].copy())


def _keystream() -> ByteSource:
    encryptor = Cipher(algorithms.AES256(os.urandom(32)), modes.CTR(os.urandom(16))).encryptor()

    def read(count: int) -> bytes:
        return encryptor.update(bytes(count))

    return read
