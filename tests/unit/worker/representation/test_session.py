"""Graphs run on a GPU if the worker's device is one and ONNX Runtime was built for it."""

import onnxruntime as ort
import pytest

from worker.representation.session import providers, uses_cuda

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"


@pytest.mark.parametrize(("device", "number"), [("cuda", "0"), ("cuda:1", "1")])
def test_the_gpu_comes_first_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, device: str, number: str
) -> None:
    monkeypatch.setattr(ort, "get_available_providers", lambda: [CUDA, CPU])
    (name, settings), rest = providers(device, 1 << 30)
    assert (name, rest) == (CUDA, CPU)
    assert settings["device_id"] == number
    assert settings["gpu_mem_limit"] == str(1 << 30)
    assert settings["use_tf32"] == "0", "it would round features to 10 bits"


@pytest.mark.parametrize(("device", "available"), [("cpu", [CUDA, CPU]), ("cuda", [CPU]), ("mps", [CPU])])
def test_otherwise_graphs_run_on_the_processor(
    monkeypatch: pytest.MonkeyPatch, device: str, available: list[str]
) -> None:
    monkeypatch.setattr(ort, "get_available_providers", lambda: available)
    assert providers(device, 1 << 30) == [CPU]
    assert not uses_cuda(device)
