"""Installing the package of sdk/ adds one import name, `lethe`, and nothing of the service."""

from __future__ import annotations

from pathlib import Path

import pytest
from setuptools.config.pyprojecttoml import apply_configuration  # type: ignore[import-untyped]
from setuptools.dist import Distribution  # type: ignore[import-untyped]

SDK = Path(__file__).parents[2] / "sdk"


@pytest.fixture(scope="module")
def distribution() -> Distribution:
    """The metadata from which setuptools would build the wheel."""
    distribution = Distribution({"src_root": str(SDK)})
    apply_configuration(distribution, SDK / "pyproject.toml")
    return distribution


def test_exactly_one_top_level_name_is_installed(distribution: Distribution) -> None:
    packages = set(distribution.packages or ())
    assert {name.partition(".")[0] for name in packages} == {"lethe"}
    assert not distribution.py_modules
    assert packages >= {"lethe", "lethe.certificate", "lethe.client", "lethe.cli"}
    assert all((SDK / name.replace(".", "/") / "__init__.py").is_file() for name in packages)


def test_the_distribution_has_one_command_and_no_dependency_of_the_service(
    distribution: Distribution,
) -> None:
    assert distribution.get_name() == "lethe-unlearning"
    assert distribution.entry_points == {"console_scripts": ["lethe = lethe.cli.main:main"]}
    names = {requirement.partition(">")[0] for requirement in distribution.install_requires}
    assert names == {"cryptography", "httpx", "pydantic", "rich", "typer"}
