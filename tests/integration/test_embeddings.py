"""From a table of embeddings to certified weights as arrays, through the real service."""

import ast
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits

from lethe import Lethe, ReleaseUnavailable
from lethe.integrations.embeddings import LinearHead, load, register
from lethe.integrations.errors import BadTable, CannotRebuild
from tests.integration.client_world import World, world
from tests.integration.client_world import register as register_toy

__all__ = ["world"]
NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]

ABOUT: dict[str, Any] = {"lam": 1e-4, "origin": "x", "row_length": 4.0}

TEN_LINES = """\
from lethe import Lethe
from lethe.integrations.embeddings import load, register
client = Lethe(URL, KEY)
columns = {"subject": "customer", "label": "digit", "features": "e_*"}
register(client, "ten", table, **columns, lam=1e-4, origin="a public encoder", row_length=4)
erasure = client.erasures.create(["customer-3"], models=["ten"])
client.models.flush("ten", force=True)
client.erasures.wait(erasure.id)
head = load(client, "ten")
predicted = head.predict(vectors)
"""


@pytest.fixture(scope="module")
def vectors() -> Any:
    return load_digits().data / 16


@pytest.fixture(scope="module")
def table(vectors: Any) -> pd.DataFrame:
    frame = pd.DataFrame(vectors).add_prefix("e_")
    frame["customer"] = [f"customer-{row // 3}" for row in range(len(frame))]
    frame["digit"] = load_digits().target
    return frame


def test_ten_lines_lead_from_the_import_to_certified_predictions(
    world: World, table: pd.DataFrame, vectors: Any
) -> None:
    assert len(TEN_LINES.splitlines()) == len(ast.parse(TEN_LINES).body) == 10
    names: dict[str, Any] = {"URL": world.url, "KEY": world.key, "table": table, "vectors": vectors}
    exec(TEN_LINES, names)
    names["client"].close()
    assert (np.array(names["predicted"]) == table["digit"]).mean() > 0.9


def test_names_of_classes_come_back_with_the_weights(world: World, table: pd.DataFrame, vectors: Any) -> None:
    named = table.assign(digit=[NAMES[digit] for digit in table["digit"]])
    with world.sync() as client:
        columns: dict[str, Any] = {"subject": "customer", "label": "digit", "features": "e_*"}
        register(client, "named", named, **columns, **ABOUT, classes=NAMES, holdout=named[:30])
        with pytest.raises(ReleaseUnavailable, match="certified=False"):
            load(client, "named")
        head = load(client, "named", certified=False)
        weights = client.versions.list("named")[0]
    assert weights.certificate_id is None
    assert head.classes == tuple(NAMES)
    assert (np.array(head.predict(vectors)) == named["digit"]).mean() > 0.9
    by_hand = np.array([[head.weight[k] @ x + head.bias[k] for k in range(10)] for x in vectors[:5]])
    np.testing.assert_allclose(head.scores(vectors[:5]), by_hand, rtol=0, atol=1e-12)


def test_a_model_from_elsewhere_has_no_list_of_classes(world: World) -> None:
    with world.sync() as client:
        register_toy(client, "toy")
        with pytest.raises(CannotRebuild, match="was not registered from embeddings"):
            load(client, "toy", certified=False)


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        ({"features": ["text"]}, "text"),
        ({"label": "share"}, "whole numbers"),
        ({"subject": "nobody"}, "nobody"),
    ],
)
def test_a_table_without_vectors_or_classes_is_refused(column: dict[str, Any], problem: str) -> None:
    table = pd.DataFrame(
        {"who": ["a", "b"], "text": ["x", "y"], "label": [0, 1], "share": [0.5, 0.25], "e_0": [1.0, 2.0]}
    )
    columns: dict[str, Any] = {"subject": "who", "label": "label", "features": "e_*"} | column
    with Lethe("http://127.0.0.1:1", "key") as client, pytest.raises(BadTable, match=problem):
        register(client, "bad", table, **columns, lam=1e-4, origin="x")


def test_scores_are_weight_times_vector_plus_bias() -> None:
    head = LinearHead(np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([0.5, 0.0]), ("left", "right"))
    assert head.scores(np.array([[1.0, 1.0]])).tolist() == [[1.5, 2.0]]
    assert head.predict(np.array([[1.0, 1.0], [1.0, 0.0]])) == ["right", "left"]
