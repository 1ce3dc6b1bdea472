"""The programs of docs/serving.md serve exported models, with the files that the page names."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from tests.docs.pages import read
from tests.unit.certificate.onnx_graphs import image_export, text_export, vector_export

PROGRAMS = [block for block in read("docs/serving.md").blocks if block.language == "python"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serving")
    for kind, export in (("vector", vector_export), ("image", image_export), ("text", text_export)):
        (folder / f"{kind}.onnx").write_bytes(export().data)
    pixels = np.random.default_rng(0).integers(0, 256, size=(20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "photo.png")
    tokenizer = Tokenizer(WordLevel({"a": 1, "short": 2, "letter": 3, "?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("place", range(len(PROGRAMS)))
def test_a_program_of_the_page_prints_classes(place: int, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    program = tmp_path / "program.py"
    program.write_text(PROGRAMS[place].text)
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    classes = done.stdout.replace("[", " ").replace("]", " ").split()
    assert classes
    assert all(0 <= int(number) < 10 for number in classes)


def test_the_page_serves_every_kind_of_input() -> None:
    assert [
        kind in block.text for kind, block in zip(("vector", "image", "text"), PROGRAMS, strict=True)
    ] == [True] * 3
