"""The tree matches RFC 6962: its test vectors, its definition and an independent implementation."""

from __future__ import annotations

import hashlib
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymerkle import InmemoryTree  # type: ignore[import-untyped]

from lethe.certificate.merkle import (
    EMPTY_ROOT,
    MemoryTree,
    append_nodes,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    reads_of,
    root,
    verify_consistency,
    verify_inclusion,
)

# Certificate Transparency's reference leaves and the roots of their first n.
LEAVES = [
    bytes.fromhex(text)
    for text in (
        "", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f",
    )
]  # fmt: skip
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
MILLION = 1_000_000


def defined_root(leaves: list[bytes]) -> bytes:
    """MTH as RFC 6962 section 2.1 writes it."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + leaves[0]).digest()
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return hashlib.sha256(b"\x01" + defined_root(leaves[:k]) + defined_root(leaves[k:])).digest()


def tree_of(count: int) -> MemoryTree:
    return MemoryTree([leaf_hash(bytes([k])) for k in range(count)])


def test_published_roots():
    tree = MemoryTree([leaf_hash(leaf) for leaf in LEAVES])
    assert [tree.root(size).hex() for size in range(1, 9)] == ROOTS
    assert MemoryTree().root() == EMPTY_ROOT == hashlib.sha256(b"").digest()


def test_published_paths():
    """The paths RFC 6962 section 2.1.3 draws for a tree of seven leaves, by the nodes it names."""
    tree = MemoryTree([leaf_hash(leaf) for leaf in LEAVES[:7]])
    a, b, c, d, e, f, j = (leaf_hash(leaf) for leaf in LEAVES[:7])
    g, h, i = tree.node(1, 0), tree.node(1, 1), tree.node(1, 2)
    k = tree.node(2, 0)
    right = defined_root(LEAVES[4:7])
    assert tree.inclusion_proof(0) == [b, h, right]
    assert tree.inclusion_proof(3) == [c, g, right]
    assert tree.inclusion_proof(4) == [f, j, k]
    assert tree.inclusion_proof(6) == [i, k]
    assert tree.consistency_proof(3) == [c, d, g, right]
    assert tree.consistency_proof(4) == [right]
    assert tree.consistency_proof(6) == [i, j, k]
    assert (a, e) == (tree.node(0, 0), tree.node(0, 4))


@given(st.lists(st.binary(max_size=40), max_size=70))
def test_root_follows_the_definition_and_an_independent_implementation(leaves):
    ours = MemoryTree([leaf_hash(leaf) for leaf in leaves]).root()
    assert ours == defined_root(leaves)
    other = InmemoryTree(algorithm="sha256")
    for leaf in leaves:
        other.append_entry(leaf)
    assert ours == other.get_root()


@given(st.integers(1, 200).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1))))
def test_every_leaf_is_proved_at_its_place_and_nowhere_else(case):
    size, index = case
    tree = tree_of(size)
    path, leaf = tree.inclusion_proof(index), tree.node(0, index)
    assert verify_inclusion(leaf, index, size, path, tree.root())
    assert not any(
        verify_inclusion(leaf, other, size, path, tree.root())
        for other in range(-1, size + 1)
        if other != index
    )
    assert not verify_inclusion(leaf, index, size, [*path, leaf], tree.root())
    assert not path or not verify_inclusion(leaf, index, size, path[:-1], tree.root())


@given(st.integers(0, 150).flatmap(lambda new: st.tuples(st.integers(0, new), st.just(new))))
def test_a_prefix_is_proved_and_an_edited_leaf_is_not(case):
    old, new = case
    tree = tree_of(new)
    path = tree.consistency_proof(old)
    assert verify_consistency(old, new, path, tree.root(old), tree.root(new))
    assert not verify_consistency(old, new, [*path, EMPTY_ROOT], tree.root(old), tree.root(new))
    for edited in range(old):
        rewritten = MemoryTree([leaf_hash(b"edited") if k == edited else tree.node(0, k) for k in range(new)])
        honest_looking = rewritten.consistency_proof(old)
        assert not verify_consistency(old, new, honest_looking, tree.root(old), rewritten.root())


@given(st.integers(2, 120).flatmap(lambda size: st.tuples(st.integers(1, size - 1), st.just(size))))
def test_deleting_a_leaf_breaks_consistency(case):
    old, size = case
    tree = tree_of(size)
    for deleted in range(old):
        shorter = MemoryTree([tree.node(0, k) for k in range(size) if k != deleted])
        if shorter.size >= old:
            proof = shorter.consistency_proof(old)
            assert not verify_consistency(old, shorter.size, proof, tree.root(old), shorter.root())


def test_impossible_requests_are_refused():
    tree = tree_of(5)
    with pytest.raises(ValueError, match="not in a tree"):
        tree.inclusion_proof(5)
    with pytest.raises(ValueError, match="cannot be a prefix"):
        tree.consistency_proof(6)
    assert not verify_consistency(6, 5, [], EMPTY_ROOT, EMPTY_ROOT)
    assert not verify_consistency(3, 5, [], tree.root(3), tree.root())


@pytest.mark.parametrize("size", [MILLION, MILLION + 1, 2**20 - 1, 2**20])
def test_a_million_leaves_cost_logarithmic_reads(size):
    for index in (0, 1, size // 3, size - 2, size - 1):
        assert len(reads_of(partial(inclusion_proof, index, size))) <= 40
    for old in (1, size // 3, size // 2, size - 1):
        assert len(reads_of(partial(consistency_proof, old, size))) <= 40
    assert len(reads_of(lambda node: root(size, node))) <= 20
    assert len(reads_of(lambda node: append_nodes(size, EMPTY_ROOT, node))) <= 20


def test_reads_are_known_in_advance_and_sufficient():
    """A store can fetch exactly these rows in one query and answer from them."""
    tree = tree_of(77)
    for old in range(1, 77):
        places = reads_of(partial(consistency_proof, old, 77))
        fetched = MemoryTree()
        fetched.nodes = {place: tree.nodes[place] for place in places}
        assert consistency_proof(old, 77, fetched.node) == tree.consistency_proof(old)


def test_a_proof_among_a_million_leaves_reads_a_few_nodes_per_level():
    """The tree of a million equal leaves has one hash per level, so it needs no million rows."""
    levels = [leaf_hash(b"same")]
    for _ in range(20):
        levels.append(hashlib.sha256(b"\x01" + levels[-1] * 2).digest())

    reads = 0

    def node(level: int, index: int) -> bytes:
        nonlocal reads
        reads += 1
        return levels[level]

    head = root(MILLION, node)
    for index in range(0, MILLION, 10_000):
        reads = 0
        path = inclusion_proof(index, MILLION, node)
        assert verify_inclusion(levels[0], index, MILLION, path, head)
        proof = consistency_proof(index + 1, MILLION, node)
        assert reads <= 4 * len(levels)
        assert verify_consistency(index + 1, MILLION, proof, root(index + 1, node), head)


def test_appending_writes_two_rows_per_leaf_on_average():
    tree, written = MemoryTree(), 0
    for k in range(1024):
        written += len(append_nodes(tree.size, leaf_hash(bytes([k % 256])), tree.node))
        tree.append(leaf_hash(bytes([k % 256])))
    assert written == len(tree.nodes) == 2047
