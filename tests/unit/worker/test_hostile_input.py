"""Small files and manifests that describe something huge are refused before anything huge is allocated."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save

from app.core.storage import Storage
from app.db.manifest import Manifest
from worker.data import datasets, families, weights
from worker.data.families import family_of, size_problem
from worker.data.inspection import Expected, Inspection
from worker.data.weights import WeightsError
from worker.engine.networks.architectures import Spec, build

MEGABYTE = 1 << 20


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(f"file://{tmp_path / 'storage'}")


@pytest.fixture
def pool() -> Iterator[pa.MemoryPool]:
    """A memory pool that counts what Arrow allocates during the test."""
    usual = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(counting)
    yield counting
    pa.set_memory_pool(usual)


def repeated_subject(storage: Storage, characters: int, rows: int) -> str:
    """Store a part that has one identifier, in every row. In the file it is written once."""
    subjects = pa.DictionaryArray.from_arrays(
        pa.array([0, *[1] * (rows - 1)], pa.int32()), pa.array(["short", "x" * characters])
    )
    features = pa.FixedSizeListArray.from_arrays(pa.array([0.5] * (2 * rows)), 2)
    table = pa.table({"subject_id": subjects, "label": [0] * rows, "features": features})
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", store_schema=False)
    assert len(sink.getvalue()) < MEGABYTE // 8
    assert pq.ParquetFile(sink).schema_arrow.field("subject_id").type == pa.string()
    return storage.write("data/part", [sink.getvalue()]).path


def test_a_long_identifier_in_every_row_is_refused_before_it_is_decoded(
    storage: Storage, pool: pa.MemoryPool
) -> None:
    path = repeated_subject(storage, characters=MEGABYTE, rows=5000)  # 5 GB if it were decoded
    before = pool.max_memory()
    inspection = Inspection(Expected(width=2, classes=2))
    inspection.add(storage, "dataset p", path)
    assert inspection.problems == [
        "dataset p: row 1: subject_id must have 1 to 256 characters, none of them a control character"
    ]
    assert pool.max_memory() < before + 32 * MEGABYTE


def test_long_identifiers_that_an_earlier_version_accepted_are_decoded_in_slices(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = repeated_subject(storage, characters=1000, rows=64)
    monkeypatch.setattr(datasets, "BATCH_BYTES", 4000)
    read = list(datasets.batches(storage, path, [datasets.SUBJECT, datasets.LABEL]))
    assert sum(batch.num_rows for batch in read) == 64
    assert max(batch.num_rows for batch in read) == 4
    assert datasets.holders(storage, path, {"short", "x" * 1000, "absent"}) == {"short", "x" * 1000}


def network(*hidden: int) -> Manifest:
    return Manifest.model_validate(
        {
            "family": "mlp",
            "width": 2,
            "classes": 2,
            "lambda": 1.0,
            "network": {"hidden": hidden},
            "origins": {"features": "made up", "constants": "made up"},
        }
    )


def test_the_size_of_a_network_is_known_without_building_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_no_device(spec: Spec) -> torch.nn.Module:
        assert torch.empty(1).is_meta  # a tensor on this device has a shape and no memory
        return build(spec)

    monkeypatch.setattr(families, "build", on_no_device)
    huge = network(*[65_536] * 16)
    problem = size_problem(huge, family_of(huge), 200_000_000)
    assert problem is not None
    assert problem.startswith("the model would have 64,425,820,162 parameters, but max_parameters allows")
    small = network(3)  # 2·3 + 3 + 3·2 + 2
    assert size_problem(small, family_of(small), 17) is None
    assert size_problem(small, family_of(small), 16) is not None


def header_only(**tensors: tuple[str, list[int], int]) -> bytes:
    """Return a safetensors file that ends after its header."""
    document, end = {}, 0
    for name, (dtype, shape, size) in tensors.items():
        document[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(document).encode()
    return len(text).to_bytes(8, "little") + text


def test_weights_are_compared_with_the_manifest_before_they_are_read(storage: Storage) -> None:
    storage.write("w", [header_only(weight=("F64", [10**9], 8 * 10**9), other=("I64", [4], 32))])
    with pytest.raises(WeightsError) as caught:
        weights.read(storage, "w", {"weight": (2, 2), "bias": (2,)})
    assert caught.value.reasons == [
        "the tensor bias is missing",
        "the file has 1 tensor besides weight, bias",
        "weight has the shape (1000000000,), expected (2, 2)",
    ]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x02",
        (1 << 40).to_bytes(8, "little"),
        (100_000_000).to_bytes(8, "little") + b"{}",
        header_only(weight=("F64", [2, 2], 31)),
        header_only(weight=("F64", [2, 2], 32)),  # the values are missing
        header_only(weight=("F64", [2, 2], 32)) + bytes(33),
        header_only(weight=("F64", [-2, -2], 32)) + bytes(32),
        (2).to_bytes(8, "little") + b"[]",
    ],
)
def test_a_file_that_is_no_safetensors_file_is_refused(storage: Storage, content: bytes) -> None:
    storage.write("w", [content])
    with pytest.raises(WeightsError, match="not a safetensors file"):
        weights.read(storage, "w", {"weight": (2, 2)})


def test_values_are_read_exactly_and_must_be_finite(storage: Storage) -> None:
    tensors = {
        "b": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "a": torch.tensor([[1.0, 2.0]], dtype=torch.float64),
        "scalar": torch.tensor(3.0),
    }
    storage.write("w", [save(tensors)])
    read = weights.read(storage, "w", {name: tuple(tensor.shape) for name, tensor in tensors.items()})
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
    storage.write("w", [save({"a": torch.tensor([float("nan")]), "b": torch.tensor([1])})])
    with pytest.raises(WeightsError, match="b has the type I64, expected floats"):
        weights.read(storage, "w", {"a": (1,), "b": (1,)})
    storage.write("w", [save({"a": torch.tensor([float("nan")])})])
    with pytest.raises(WeightsError, match="a contains NaN or infinity"):
        weights.read(storage, "w", {"a": (1,)})
