"""Parts imported from a URI: copied whole, or refused with a reason."""

from pathlib import Path

import pytest

from app.core.settings import Settings
from app.core.storage import Storage
from worker import imports
from worker.imports import ImportFailed


def test_an_import_is_copied_or_refused_with_a_reason(tmp_path: Path) -> None:
    storage = Storage(f"file://{tmp_path / 'storage'}")
    source = tmp_path / "source" / "acme"
    source.mkdir(parents=True)
    (source / "part").write_bytes(b"x" * 2000)
    settings = Settings(import_roots=f"file://{source.parent}", max_upload_bytes=2048)
    assert imports.copy(settings, storage, f"file://{source}/part", "data/copy", "acme").size == 2000
    with pytest.raises(ImportFailed, match="the file does not exist"):
        imports.copy(settings, storage, f"file://{source}/nothing", "data/copy2", "acme")
    with pytest.raises(ImportFailed, match="not allow"):
        imports.copy(settings, storage, f"file://{tmp_path}/part", "data/copy2", "acme")
    with pytest.raises(ImportFailed, match="not allow"):
        imports.copy(settings, storage, f"file://{source}/part", "data/copy2", "other")
    (source / "part").write_bytes(b"x" * 2049)
    with pytest.raises(ImportFailed, match="longer than 2048"):
        imports.copy(settings, storage, f"file://{source}/part", "data/copy2", "acme")
    assert not storage.exists("data/copy2")
