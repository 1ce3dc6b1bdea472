"""`python -m tests.chaos`: random faults on a running service, drawn from a seed."""

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.chaos.__main__ import arguments
from tests.chaos.checks import search
from tests.chaos.faults import DECK, ON_POSTGRESQL, STRIKES, FaultKind, plan

ROOT = Path(__file__).parents[2]
FAULTS = 40
SECONDS = 900  # a limit for a hanging run; it takes about half a minute


@pytest.mark.slow
def test_forty_random_faults_lose_nothing_and_repeat_nothing() -> None:
    options = f"--seed 7 --faults {FAULTS} --database sqlite".split()
    run = subprocess.run(
        [sys.executable, "-m", "tests.chaos", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    assert f"seed 7 on sqlite: {FAULTS} faults" in run.stdout
    assert "batches that needed a person: 0" in run.stdout


@pytest.mark.parametrize("postgresql", [False, True])
def test_a_seed_always_yields_the_same_faults_and_every_kind_of_them(postgresql: bool) -> None:
    deck = DECK | (ON_POSTGRESQL if postgresql else {})
    first, second, other = (
        list(itertools.islice(plan(seed, postgresql=postgresql), sum(deck.values()))) for seed in (7, 7, 8)
    )
    assert first == second != other
    assert {fault.kind for fault in first} == set(deck)
    assert all(fault.kind in STRIKES for fault in first)
    assert sum(DECK.values()) == FAULTS
    assert set(DECK) | set(ON_POSTGRESQL) == set(FaultKind)


def test_the_search_finds_identifiers_and_numbers_at_any_offset() -> None:
    number = np.float64(0.1234567)
    bits = {int(number.view(np.uint64))}
    people = {b"first-person-000001"}
    assert not list(search("a file", b"first-person-000002" + bytes(64), people, bits))
    assert list(search("a file", b"x first-person-000001,", people, bits))
    for offset in range(8):
        assert list(search("a file", bytes(offset) + number.tobytes() + bytes(5), people, bits))


@pytest.mark.parametrize("options", [("--faults", "0"), ("--database", "mysql"), ("--faults", "many")])
def test_a_wrong_option_is_refused(options: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        arguments(options)
    assert end.value.code == 2
    assert options[0] in capsys.readouterr().err
