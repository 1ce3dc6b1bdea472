"""`make demo`: one erasure end to end on embedded defaults, through the public API, as a user would.

Trains a classifier on scikit-learn's handwritten digits, whose writers hold several rows each, erases some
writers of zeros and sevens, and verifies the certificate of the published model offline.
"""

import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits

from certificate.cli import run_verify

ROWS_PER_WRITER = 3
WAIT_SECONDS = 120.0
MANIFEST: dict[str, Any] = {
    "family": "softmax",
    "width": 64,
    "classes": 10,
    "lambda": 1e-3,
    "origins": {"features": "raw pixels divided by 16 · 8", "constants": "chosen before the data was seen"},
    "policy": {"epsilon": 1.0, "delta": 1e-5, "target_distance": 1e-4, "batch_subjects": 1000},
}
console = Console()


class DemoFailed(Exception):
    pass


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="lethe-demo-") as folder:
        try:
            with _service(Path(folder)) as api:
                _run(api, Path(folder))
        except DemoFailed as problem:
            console.print(f"[red]The demonstration failed:[/] {problem}")
            return 1
    return 0


def _run(api: httpx.Client, folder: Path) -> None:
    part, erase = _digits()
    console.print("Registering a softmax classifier of handwritten digits, trained by the service …")
    _take(api.post("/v1/models", json={"name": "digits", "manifest": MANIFEST}))
    _take(api.put("/v1/models/digits/dataset/part0", content=part))
    _take(api.post("/v1/models/digits/validate"))
    model = _wait(api, "/v1/models/digits", {"ready", "rejected"})
    if model["state"] != "ready":
        raise DemoFailed(f"the model was rejected: {model['reasons']}")

    console.print(f"Asking for {len(erase)} writers to be erased …")
    erasure = _take(api.post("/v1/erasures", json={"subjects": erase, "reference": "demo"}))
    _take(api.post("/v1/models/digits/flush"))
    done = _wait(api, f"/v1/erasures/{erasure['id']}", {"completed", "failed"})
    task = done["tasks"][0]
    if done["state"] != "completed":
        raise DemoFailed(str(_take(api.get(f"/v1/batches/{task['batch_id']}"))["error"]))
    _verify(api, folder, task)
    _summary(api, task)


def _verify(api: httpx.Client, folder: Path, task: dict[str, Any]) -> None:
    where = f"/v1/certificates/{task['certificate_id']}"
    files = {
        "model.safetensors": "/v1/models/digits/versions/current/checkpoint",
        "pack.json": f"{where}/pack",
        "evidence.json": f"{where}/evidence",
    }
    for name, path in files.items():
        answer = api.get(path)
        answer.raise_for_status()
        (folder / name).write_bytes(answer.content)
    console.rule("lethe verify pack.json --model model.safetensors --evidence evidence.json")
    code = run_verify(
        pack=folder / "pack.json",
        model=folder / "model.safetensors",
        evidence=folder / "evidence.json",
        write=lambda line: console.print(line, markup=False, highlight=False),
    )
    console.rule()
    if code != 0:
        raise DemoFailed("the certificate does not verify")


def _summary(api: httpx.Client, task: dict[str, Any]) -> None:
    batch = _take(api.get(f"/v1/batches/{task['batch_id']}"))
    evidence = _take(api.get(f"/v1/certificates/{task['certificate_id']}/evidence"))
    model = _take(api.get("/v1/models/digits"))
    policy = model["manifest"]["policy"]
    table = Table(show_header=False, title="Erased, and proved")
    table.add_row("subjects erased", str(task["outcomes"]["erased"]))
    table.add_row("records erased", f"{batch['records']} of {model['report']['rows']}")
    table.add_row("shift KL(R‖D)", f"{evidence['shift']['kl_retained_original']:.4f}")
    table.add_row(
        "distance to retraining",
        f"{evidence['distance']:.2e} certified, target {policy['target_distance']:g}",
    )
    table.add_row(
        "guarantee", f"ε = {policy['epsilon']:g}, δ = {policy['delta']:g}, σ = {model['sigma']:.3e}"
    )
    table.add_row("passes over the data", f"{evidence['solver']['passes']:.1f}")
    table.add_row("certificate", task["certificate_id"])
    console.print(table)


@contextmanager
def _service(folder: Path) -> Iterator[httpx.Client]:
    """`lethe up` on a folder of its own, stopped at the end as by Ctrl-C."""
    command = [sys.executable, "-m", "client.cli", "up", "--data-dir", str(folder / "data"), "--port", "0"]
    with (folder / "log").open("w") as log:
        service = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=_environment())
    try:
        said = _until_ready(service)
        with httpx.Client(base_url=said["address"], timeout=60, trust_env=False) as api:
            api.headers["Authorization"] = f"Bearer {said['key']}"
            yield api
    except DemoFailed:
        console.print((folder / "log").read_text()[-3000:], markup=False)
        raise
    finally:
        service.send_signal(signal.SIGINT)
        service.wait(60)


def _until_ready(service: "subprocess.Popen[str]") -> dict[str, str]:
    assert service.stdout is not None
    said: dict[str, str] = {}
    for line in service.stdout:
        if found := re.search(r"API key\s+(lethe_\S+)", line):
            said["key"] = found[1]
        if found := re.search(r"answers at (http://\S+)", line):
            said["address"] = found[1]
            return said
    raise DemoFailed("the service did not start")


def _environment() -> dict[str, str]:
    """No setting of the surroundings shall change the demonstration."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LETHE_")}


def _digits() -> tuple[bytes, list[str]]:
    """The digits as one Parquet part, and the writers who want to be forgotten."""
    data = load_digits()
    pixels = (data.data / (16 * 8)).astype(np.float32)  # 64 pixels of at most 1/8: no row is longer than 1
    writers = _writers(data.target)
    erase = sorted({w for w, label in zip(writers, data.target, strict=True) if label in (0, 7)})[::2]
    table = pa.table(
        {
            "subject_id": pa.array(writers, pa.string()),
            "label": pa.array(data.target, pa.int64()),
            "features": pa.FixedSizeListArray.from_arrays(pa.array(pixels.ravel()), pixels.shape[1]),
        }
    )
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue(), erase


def _writers(labels: npt.NDArray[np.int64]) -> list[str]:
    """Each writer holds a few rows of one class, so that erasing people shifts the class mix."""
    seen: dict[int, int] = {}
    names = []
    for label in labels.tolist():
        place = seen[label] = seen.get(label, -1) + 1
        names.append(f"writer-{label}-{place // ROWS_PER_WRITER}")
    return names


def _take(answer: httpx.Response) -> Any:
    if answer.is_error:
        raise DemoFailed(f"{answer.request.method} {answer.request.url.path}: {answer.text}")
    return answer.json()


def _wait(api: httpx.Client, path: str, ends: set[str]) -> Any:
    deadline = time.monotonic() + WAIT_SECONDS
    with console.status("working …") as status:
        while time.monotonic() < deadline:
            found = _take(api.get(path))
            if found["state"] in ends:
                return found
            status.update(f"{path}: {found['state']}")
            time.sleep(0.2)
    raise DemoFailed(f"{path} did not end within {WAIT_SECONDS:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
