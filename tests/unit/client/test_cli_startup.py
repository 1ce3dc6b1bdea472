"""The command starts fast: nothing heavy is imported before a command needs it."""

import subprocess
import sys

from lethe.cli.server_commands import help_summary, installed_commands

HEAVY = {"torch", "numpy", "fastapi", "sqlalchemy", "redis", "rq", "httpx", "cryptography"}


def _run(*words: str) -> tuple[str, set[str]]:
    code = (
        "import sys\nfrom lethe.cli.main import app\n"
        f"try: app({list(words)!r}, prog_name='lethe')\n"
        "finally: print('\\nMODULES', *{m.partition('.')[0] for m in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    output, _, modules = done.stdout.partition("\nMODULES")
    return output, set(modules.split())


def test_help_imports_nothing_heavy_and_lists_every_command() -> None:
    output, modules = _run("--help")
    assert modules.isdisjoint(HEAVY)
    for name in ("model", "erase", "status", "watch", "download", "verify", "audit", "ledger", "receipts"):
        assert f" {name} " in output
    for name in installed_commands():
        assert f" {name} " in output


def test_help_of_a_command_imports_nothing_heavy() -> None:
    output, modules = _run("erase", "--help")
    assert modules.isdisjoint(HEAVY)
    assert "--api-key" in output
    assert "--json" in output


def test_server_commands_are_listed_with_the_first_line_of_their_own_help() -> None:
    for name, entry_point in installed_commands().items():
        target = entry_point.load()
        own_help = target.info.help if hasattr(target, "registered_commands") else target.__doc__
        assert help_summary(entry_point) == own_help.partition("\n")[0] != "", name
