"""Lists without a fixed size go through registration and erasure like fixed-size lists."""

import io
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

from lethe import ModelRejected
from lethe.integrations.errors import CannotRebuild
from lethe.integrations.sklearn import load as load_estimator
from lethe.integrations.tables import write_parquet
from tests.integration.client_world import JOB_SECONDS, TOY, World, world
from tests.integration.harness import dataset

__all__ = ["world"]


def _as_lists(rows: list[list[float]] | None = None) -> bytes:
    """Return the usual part with `features` as `list<float>`, as polars and most other tools write it."""
    frame = pl.from_arrow(pq.read_table(io.BytesIO(dataset())))
    assert isinstance(frame, pl.DataFrame)
    listed = frame.with_columns(
        pl.Series("features", rows or frame["features"].to_list(), pl.List(pl.Float64))
    )
    sink = io.BytesIO()
    listed.write_parquet(sink)
    assert "fixed_size_list" not in str(pq.read_schema(io.BytesIO(sink.getvalue())))
    return sink.getvalue()


def test_a_model_on_lists_is_the_same_and_erases_people(world: World, tmp_path: Path) -> None:
    with world.sync() as lethe:
        weights = {}
        for name, part in (("fixed", dataset()), ("lists", _as_lists())):
            lethe.models.create(name, TOY)
            lethe.models.upload_part(name, "part0", part)
            lethe.models.validate(name)
            lethe.models.wait_ready(name, timeout=JOB_SECONDS)
            weights[name] = lethe.versions.download(name, tmp_path / name).read_bytes()[-21 * 8 :]
        assert weights["fixed"] == weights["lists"]
        for person in ("s1", "s2"):  # the second erasure reads the part that the first has rewritten
            erasure = lethe.erasures.create([person], models=["lists"])
            lethe.models.flush("lists", force=True)
            done = lethe.erasures.wait(erasure.id, timeout=JOB_SECONDS)
            assert (done.state, done.tasks[0].outcomes) == ("completed", {"erased": 1})
        assert lethe.models.parts("lists")[0].rows == 112
        with pytest.raises(CannotRebuild, match="lists was not registered from scikit-learn"):
            load_estimator(lethe, "lists")


def test_registration_names_the_first_row_of_another_length(world: World) -> None:
    rows = np.ones((120, 6)).tolist()
    rows[17], rows[80] = rows[17][:5], []
    with world.sync() as lethe:
        lethe.models.create("ragged", TOY)
        lethe.models.upload_part("ragged", "part0", _as_lists(rows))
        lethe.models.validate("ragged")
        with pytest.raises(ModelRejected) as caught:
            lethe.models.wait_ready("ragged", timeout=JOB_SECONDS)
    assert caught.value.reasons == (
        "dataset part0: row 17: the number of features is not 6, as the manifest says (2 rows in total)",
    )


def test_embeddings_of_a_dataframe_are_written_and_registered(world: World, tmp_path: Path) -> None:
    frame = pl.from_arrow(pq.read_table(io.BytesIO(dataset())))
    assert isinstance(frame, pl.DataFrame)
    named = frame.with_columns(pl.col("label").replace_strict({0: "cat", 1: "dog", 2: "emu"}))
    part = write_parquet(named, tmp_path / "part.parquet", subject="subject_id", label="label")
    assert (part.width, part.classes) == (6, ("cat", "dog", "emu"))
    with world.sync() as lethe:
        lethe.models.create("frame", TOY)
        lethe.models.upload_part("frame", "part0", part.path)
        lethe.models.validate("frame")
        assert lethe.models.wait_ready("frame", timeout=JOB_SECONDS).state == "ready"
