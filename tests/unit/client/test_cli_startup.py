"""The command starts fast: nothing heavy is imported before a verb needs it."""

import subprocess
import sys

from client.server_verbs import points, summary

HEAVY = {"torch", "numpy", "fastapi", "sqlalchemy", "redis", "rq", "httpx", "cryptography"}


def _run(*words: str) -> tuple[str, set[str]]:
    code = (
        "import sys\nfrom client.cli import app\n"
        f"try: app({list(words)!r}, prog_name='lethe')\n"
        "finally: print('\\nMODULES', *{m.partition('.')[0] for m in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said, _, modules = done.stdout.partition("\nMODULES")
    return said, set(modules.split())


def test_help_imports_nothing_heavy_and_lists_every_verb() -> None:
    said, modules = _run("--help")
    assert modules.isdisjoint(HEAVY)
    for verb in ("model", "erase", "status", "watch", "download", "verify", "audit", "ledger", "receipts"):
        assert f" {verb} " in said
    for verb in points():
        assert f" {verb} " in said


def test_help_of_a_verb_imports_no_server() -> None:
    said, modules = _run("erase", "--help")
    assert modules.isdisjoint(HEAVY)
    assert "--api-key" in said
    assert "--json" in said


def test_verbs_of_the_server_are_described_as_they_describe_themselves() -> None:
    for name, point in points().items():
        target = point.load()
        said = target.info.help if hasattr(target, "registered_commands") else target.__doc__
        assert summary(point) == said.partition("\n")[0] != "", name
