"""The RFC 6962 Merkle tree, as pure functions that read stored nodes through a callback.

A store keeps one row per complete subtree, (level, index) → hash, where the subtree covers the leaves
[index·2^level, (index+1)·2^level). Such a node never changes, so appending a leaf adds rows and edits none.
A proof reads O(log n) rows. `reads_of` lists them in advance, so that one SQL query can fetch them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar

Node = tuple[int, int, bytes]
NodeReader = Callable[[int, int], bytes]
T = TypeVar("T")

EMPTY_ROOT = hashlib.sha256(b"").digest()


def leaf_hash(data: bytes) -> bytes:
    """Return the hash of a leaf with this data (RFC 6962, 2.1)."""
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of an inner node with these children (RFC 6962, 2.1)."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def append_nodes(size: int, leaf: bytes, node: NodeReader) -> list[Node]:
    """Return the nodes to write when a leaf hash is appended to a tree of `size` leaves.

    They are the leaf itself and every subtree that it completes.
    """
    written: list[Node] = [(0, size, leaf)]
    level, index, value = 0, size, leaf
    while index % 2 == 1:
        value = node_hash(node(level, index - 1), value)
        level, index = level + 1, index // 2
        written.append((level, index, value))
    return written


def root(size: int, node: NodeReader) -> bytes:
    """Return the root of the tree over the first `size` leaves."""
    return _range_hash(0, size, node) if size else EMPTY_ROOT


def _range_hash(start: int, end: int, node: NodeReader) -> bytes:
    """Return the hash of the leaves [start, end). If their number is a power of two, it is a stored node."""
    width = end - start
    if width & (width - 1) == 0:
        level = width.bit_length() - 1
        return node(level, start >> level)
    middle = start + _split(width)
    return node_hash(_range_hash(start, middle, node), _range_hash(middle, end, node))


def _split(width: int) -> int:
    """Return the largest power of two smaller than `width`, which RFC 6962 calls k."""
    return 1 << ((width - 1).bit_length() - 1)


def inclusion_proof(index: int, size: int, node: NodeReader) -> list[bytes]:
    """Return the audit path of leaf `index` in a tree of `size` leaves, leaf first (RFC 6962, 2.1.1)."""
    if not 0 <= index < size:
        raise ValueError(f"leaf {index} is not in a tree of {size} leaves")
    path: list[bytes] = []
    start, end = 0, size
    while end - start > 1:
        middle = start + _split(end - start)
        if index < middle:
            path.append(_range_hash(middle, end, node))
            end = middle
        else:
            path.append(_range_hash(start, middle, node))
            start = middle
    return path[::-1]


def consistency_proof(old: int, new: int, node: NodeReader) -> list[bytes]:
    """Return the proof that the tree of `old` leaves is a prefix of the tree of `new` (RFC 6962, 2.1.2)."""
    if not 0 <= old <= new:
        raise ValueError(f"a tree of {old} leaves cannot be a prefix of a tree of {new}")
    if old in (0, new):
        return []
    path: list[bytes] = []
    start, end = 0, new
    while end != old:
        middle = start + _split(end - start)
        if old <= middle:
            path.append(_range_hash(middle, end, node))
            end = middle
        else:
            path.append(_range_hash(start, middle, node))
            start = middle
    if start:  # if the old tree is one subtree, the verifier already has its root
        path.append(_range_hash(start, end, node))
    return path[::-1]


def verify_inclusion(leaf: bytes, index: int, size: int, path: Sequence[bytes], expected_root: bytes) -> bool:
    """Return whether `path` leads from the leaf hash at `index` to the root (RFC 9162, 2.1.3.2)."""
    if not 0 <= index < size:
        return False
    position, last, value = index, size - 1, leaf
    for sibling in path:
        if last == 0:
            return False
        if position % 2 == 1 or position == last:
            value = node_hash(sibling, value)
            while position % 2 == 0 and position:
                position, last = position >> 1, last >> 1
        else:
            value = node_hash(value, sibling)
        position, last = position >> 1, last >> 1
    return last == 0 and value == expected_root


def verify_consistency(old: int, new: int, path: Sequence[bytes], old_root: bytes, new_root: bytes) -> bool:
    """Return whether `path` proves that a tree of `new` leaves extends one of `old` (RFC 9162, 2.1.4.2)."""
    if not 0 <= old <= new:
        return False
    if old == 0:
        return not path and old_root == EMPTY_ROOT
    if old == new:
        return not path and old_root == new_root
    steps = [old_root, *path] if old & (old - 1) == 0 else list(path)
    if not steps:
        return False
    position, last = old - 1, new - 1
    while position % 2 == 1:
        position, last = position >> 1, last >> 1
    old_value = new_value = steps[0]
    for sibling in steps[1:]:
        if last == 0:
            return False
        if position % 2 == 1 or position == last:
            old_value, new_value = node_hash(sibling, old_value), node_hash(sibling, new_value)
            while position % 2 == 0 and position:
                position, last = position >> 1, last >> 1
        else:
            new_value = node_hash(new_value, sibling)
        position, last = position >> 1, last >> 1
    return last == 0 and old_value == old_root and new_value == new_root


def reads_of(computation: Callable[[NodeReader], T]) -> list[tuple[int, int]]:
    """Return the (level, index) pairs that `computation` will read, without reading them.

    The pairs depend on sizes alone, never on hashes, so a store can fetch them all in one query:

    >>> reads_of(lambda node: inclusion_proof(5, 7, node))
    [(2, 0), (0, 6), (0, 4)]
    """
    places: list[tuple[int, int]] = []

    def record(level: int, index: int) -> bytes:
        places.append((level, index))
        return EMPTY_ROOT

    computation(record)
    return places


class MemoryTree:
    """A tree kept in a dictionary. Deletion sets use it, and tests compare the SQL store with it."""

    def __init__(self, leaves: Sequence[bytes] = ()) -> None:
        self.nodes: dict[tuple[int, int], bytes] = {}
        self.size = 0
        for leaf in leaves:
            self.append(leaf)

    def node(self, level: int, index: int) -> bytes:
        """Return the hash of a complete subtree."""
        return self.nodes[level, index]

    def append(self, leaf: bytes) -> int:
        """Append a leaf hash and return its index."""
        for level, index, value in append_nodes(self.size, leaf, self.node):
            self.nodes[level, index] = value
        self.size += 1
        return self.size - 1

    def root(self, size: int | None = None) -> bytes:
        """Return the root over the first `size` leaves, or over all of them."""
        return root(self.size if size is None else size, self.node)

    def inclusion_proof(self, index: int, size: int | None = None) -> list[bytes]:
        """Return the audit path of leaf `index` in the tree of the first `size` leaves, or of all."""
        return inclusion_proof(index, self.size if size is None else size, self.node)

    def consistency_proof(self, old: int, new: int | None = None) -> list[bytes]:
        """Return the proof that the tree of `old` leaves is a prefix of that of `new` leaves, or of all."""
        return consistency_proof(old, self.size if new is None else new, self.node)
