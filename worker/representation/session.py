"""ONNX Runtime sessions: how a graph is loaded, limited in time, and run."""

import os
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy.typing as npt
import onnxruntime as ort

from worker.representation.errors import RepresentationError, one_line, printable

_SILENT: Final = 4  # ONNX Runtime's warnings and errors go to stderr and can quote values
_STATUS: Final = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
_FAILED_NODE: Final = re.compile(r"while running (\w+) node\. Name:'([^']*)'")
_NO_MEMORY: Final = re.compile(r"bad_?alloc|failed to allocate|out of memory", re.IGNORECASE)

ort.set_default_logger_severity(_SILENT)


def default_threads() -> int:
    """Return how many threads run one operator."""
    return os.cpu_count() or 1


class GraphSession:
    """A loaded graph, with the providers of a device and a time limit on each run."""

    def __init__(
        self,
        graph: bytes,
        *,
        device: str,
        seconds: float,
        threads: int,
        memory_bytes: int,
        fixed_shapes: bool,
    ) -> None:
        self._seconds = seconds
        options = ort.SessionOptions()
        options.log_severity_level = _SILENT
        options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # A file in the format of ONNX Runtime would be another graph than the one that was inspected.
        options.add_session_config_entry("session.load_model_format", "ONNX")
        options.use_deterministic_compute = True
        options.enable_mem_pattern = fixed_shapes  # plans memory for one shape
        # Idle threads would otherwise spin and take time from the rest of the attempt.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = ort.InferenceSession(graph, options, providers=providers(device, memory_bytes))
        except MemoryError:
            raise
        except Exception as problem:  # ONNX Runtime's errors have no common base class
            raise RepresentationError([_describe_loading(problem)]) from None

    def run(self, outputs: Sequence[str], inputs: Mapping[str, npt.NDArray[Any]]) -> list[Any]:
        """Run the graph once and return these outputs, or raise `RepresentationError`.

        The time limit takes effect between two operators. One operator cannot be interrupted.
        """
        options = ort.RunOptions()
        options.log_severity_level = _SILENT
        expired = threading.Event()

        def stop() -> None:
            expired.set()
            options.terminate = True

        timer = threading.Timer(self._seconds, stop)
        timer.daemon = True
        timer.start()
        try:
            result: list[Any] = self._session.run(list(outputs), dict(inputs), options)
        except MemoryError:
            raise
        except Exception as problem:  # ONNX Runtime's errors have no common base class
            if expired.is_set():
                raise RepresentationError(
                    [f"the graph needs more than {self._seconds:g} seconds for one batch of rows"]
                ) from None
            raise RepresentationError([_describe_running(problem)]) from None
        finally:
            timer.cancel()
        return result


def uses_cuda(device: str) -> bool:
    """Return whether graphs run on a GPU: the device is one, and ONNX Runtime was built for it."""
    return device.startswith("cuda") and "CUDAExecutionProvider" in ort.get_available_providers()


def providers(device: str, memory_bytes: int) -> list[Any]:
    """Return the execution providers for a device, in order of preference."""
    if not uses_cuda(device):
        return ["CPUExecutionProvider"]
    number = device.partition(":")[2] or "0"
    settings = {
        "device_id": number,
        "gpu_mem_limit": str(memory_bytes),
        "cudnn_conv_algo_search": "DEFAULT",  # a search could choose another algorithm each time
        "use_tf32": "0",
    }
    return [("CUDAExecutionProvider", settings), "CPUExecutionProvider"]


def _describe_loading(problem: Exception) -> str:
    if _NO_MEMORY.search(str(problem)):
        return "the graph needs more memory than is allowed when it is loaded"
    message = one_line(_STATUS.sub("", str(problem)))
    return f"ONNX Runtime cannot load the graph: {printable(message)}"


def _describe_running(problem: Exception) -> str:
    """Say which operator failed. The rest of ONNX Runtime's message can quote values of a row."""
    if _NO_MEMORY.search(str(problem)):
        return "the graph needs more memory than is allowed for one batch of rows"
    node = _FAILED_NODE.search(str(problem))
    if node is None:
        return "ONNX Runtime cannot run the graph on inputs of the declared shape"
    place = f" (node '{printable(node[2], 60)}')" if node[2] else ""
    return f"ONNX Runtime cannot run the operator {node[1]}{place} on inputs of the declared shape"
