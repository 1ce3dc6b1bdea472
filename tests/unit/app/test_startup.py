"""The start of every server command."""

import json
import subprocess
import sys

CODE = """
import json, os, resource
from app.startup import settings_or_exit
settings_or_exit()
print(json.dumps([os.umask(0), resource.getrlimit(resource.RLIMIT_CORE)]))
"""


def test_files_are_the_owners_and_no_core_is_dumped() -> None:
    ended = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout) == [0o077, [0, 0]]
