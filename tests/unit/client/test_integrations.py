"""Integrations say which library is missing, in one line."""

import sys

import pytest

from lethe import Lethe
from lethe.integrations import mlflow as integration


def test_without_mlflow_one_line_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with Lethe("http://x", "k") as lethe, pytest.raises(ImportError, match="mlflow-skinny") as refused:
        integration.log_release(lethe, "credit")
    assert "\n" not in str(refused.value)
