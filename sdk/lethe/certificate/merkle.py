"""RFC 6962 Merkle tree as pure functions over a reader of complete subtrees.

A store keeps one row per complete subtree: (level, index) → hash, where the subtree covers the leaves
[index·2^level, (index+1)·2^level). Such a node never changes once written, so an append adds rows and
edits none, and every proof reads O(log n) rows. `reads_of` lists those rows, for one SQL query.
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
    return hashlib.sha256(b"\x00" + data).digest()  # RFC 6962, 2.1


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def append_nodes(size: int, leaf: bytes, node: NodeReader) -> list[Node]:
    """Nodes to write when the leaf hash `leaf` joins a tree of `size`: itself and what it completes."""
    written: list[Node] = [(0, size, leaf)]
    level, index, value = 0, size, leaf
    while index % 2 == 1:
        value = node_hash(node(level, index - 1), value)
        level, index = level + 1, index // 2
        written.append((level, index, value))
    return written


def root(size: int, node: NodeReader) -> bytes:
    return _range_hash(0, size, node) if size else EMPTY_ROOT


def _range_hash(start: int, end: int, node: NodeReader) -> bytes:
    """Hash of the leaves [start, end); a range of a power of two is one stored node."""
    width = end - start
    if width & (width - 1) == 0:
        level = width.bit_length() - 1
        return node(level, start >> level)
    middle = start + _split(width)
    return node_hash(_range_hash(start, middle, node), _range_hash(middle, end, node))


def _split(width: int) -> int:
    """The largest power of two smaller than `width` (RFC 6962's k)."""
    return 1 << ((width - 1).bit_length() - 1)


def inclusion_proof(index: int, size: int, node: NodeReader) -> list[bytes]:
    """Audit path of leaf `index` in the tree of `size` leaves, from the leaf up (RFC 6962, 2.1.1)."""
    if not 0 <= index < size:
        raise ValueError(f"leaf {index} is not in a tree of {size}")
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
    """Proof that the tree of `old` leaves is a prefix of the tree of `new` (RFC 6962, 2.1.2)."""
    if not 0 <= old <= new:
        raise ValueError(f"a tree of {old} cannot be a prefix of a tree of {new}")
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
    if start:  # the old tree's last subtree is not its root, which the verifier already has
        path.append(_range_hash(start, end, node))
    return path[::-1]


def verify_inclusion(leaf: bytes, index: int, size: int, path: Sequence[bytes], expected_root: bytes) -> bool:
    """Whether `path` leads from the leaf hash to the root (RFC 9162, 2.1.3.2)."""
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
    """Whether the tree of `new` leaves extends the tree of `old` (RFC 9162, 2.1.4.2)."""
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
    """The (level, index) pairs `computation` reads, without reading them.

    Which nodes are read depends on sizes alone, never on hashes, so a store can fetch them in one query:

    >>> reads_of(lambda node: inclusion_proof(5, 7, node))
    [(2, 0), (0, 6), (0, 4)]
    """
    wanted: list[tuple[int, int]] = []

    def record(level: int, index: int) -> bytes:
        wanted.append((level, index))
        return EMPTY_ROOT

    computation(record)
    return wanted


class MemoryTree:
    """The tree in a dictionary: for a deletion set, and as the model other stores are tested against."""

    def __init__(self, leaves: Sequence[bytes] = ()) -> None:
        self.nodes: dict[tuple[int, int], bytes] = {}
        self.size = 0
        for leaf in leaves:
            self.append(leaf)

    def node(self, level: int, index: int) -> bytes:
        return self.nodes[level, index]

    def append(self, leaf: bytes) -> int:
        """Add a leaf hash; its index."""
        for level, index, value in append_nodes(self.size, leaf, self.node):
            self.nodes[level, index] = value
        self.size += 1
        return self.size - 1

    def root(self, size: int | None = None) -> bytes:
        return root(self.size if size is None else size, self.node)

    def inclusion_proof(self, index: int, size: int | None = None) -> list[bytes]:
        return inclusion_proof(index, self.size if size is None else size, self.node)

    def consistency_proof(self, old: int, new: int | None = None) -> list[bytes]:
        return consistency_proof(old, self.size if new is None else new, self.node)
