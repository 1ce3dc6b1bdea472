"""A real identity provider, in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

# Prints its port, and serves until its standard input is closed.
PROVIDER = """
import json, sys, warnings
warnings.simplefilter("ignore")
from oidc_provider_mock import User, run_server_in_thread
people = [User(sub=p.pop("sub"), claims=p) for p in json.loads(sys.argv[1])]
with run_server_in_thread(require_nonce=True, user_claims=people) as server:
    print(server.server_port, flush=True)
    sys.stdin.read()
"""


@contextmanager
def run_provider(people: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Run a provider that knows these people, each with `sub` and claims, and return its issuer."""
    with subprocess.Popen(
        [sys.executable, "-c", PROVIDER, json.dumps(people)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield f"http://localhost:{int(process.stdout.readline())}"
        process.stdin.close()
