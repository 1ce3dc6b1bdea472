"""Run the service under load, inject random faults, and check that nothing was lost or done twice.

python -m tests.chaos --seed 7 --faults 40 --database sqlite
"""

import argparse
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lethe import LetheError
from tests.chaos import checks
from tests.chaos.faults import FaultKind, Injector
from tests.chaos.load import MODELS, Customer, Person, register_models, wait_until_completed
from tests.chaos.service import Service

QUIET_SECONDS = 600.0
HELP_SECONDS = 1.0
HEADS = 5  # earlier tree heads to compare the log with


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line, or `words`."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="draws the faults (default: 0)")
    parser.add_argument("--faults", type=_positive, default=40, help="how many to inject (default: 40)")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="stop injecting after this time (default: 10)"
    )
    parser.add_argument("--max-attempts", type=_positive, default=5, help="LETHE_MAX_ATTEMPTS (default: 5)")
    return parser.parse_args(words)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


@contextmanager
def running_service(options: argparse.Namespace) -> Iterator[Service]:
    """Start a service in a temporary folder, and stop it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="lethe-chaos-"))
    service = Service(folder, options.database, options.max_attempts)
    try:
        service.start()
        yield service
    except BaseException:
        say(f"The logs are in {folder}")
        raise
    finally:
        service.close()
    shutil.rmtree(folder, ignore_errors=True)


class Run:
    """One run: load, faults, quiet, checks, report."""

    def __init__(self, service: Service, options: argparse.Namespace) -> None:
        self.service, self.options = service, options
        self.customers = [Customer(service, model) for model in MODELS]
        self.person = Person(service)
        self.injector = Injector(service, options.seed)
        self.heads: list[str] = []

    def disturb(self) -> None:
        """Inject the faults while customers send requests, and let a person help now and then."""
        for customer in self.customers:
            customer.start()
        over = threading.Event()
        helping = threading.Thread(target=self._look_after, args=(over,), name="person")
        helping.start()
        self.injector.inject(self.options.faults, time.monotonic() + 60 * self.options.minutes)
        over.set()
        helping.join()
        for customer in self.customers:
            customer.stop(QUIET_SECONDS)

    def _look_after(self, over: threading.Event) -> None:
        while not over.wait(HELP_SECONDS):
            self.person.help()
            self._keep_tree_head()

    def _keep_tree_head(self) -> None:
        try:
            with self.service.client() as lethe:
                head = lethe.log.tree_head()
        except LetheError:  # the gateway does not answer, or the log is still empty
            return
        if int(head.splitlines()[1]) > 0:
            self.heads.append(head)

    def findings(self) -> list[str]:
        """Wait until the service is quiet, and return what is wrong."""
        open_requests = wait_until_completed(self.service, self.person, QUIET_SECONDS)
        found = [f"request {each} is not completed after {QUIET_SECONDS:.0f} s" for each in open_requests]
        found += [f"{c.model}: {type(c.problem).__name__}: {c.problem}" for c in self.customers if c.problem]
        found += self.injector.problems
        heads = self.heads[:: max(1, len(self.heads) // HEADS)]
        helped = bool(self.person.helped)
        found += checks.run_checks(self.service, self.customers, heads, helped=helped, say=say)
        if self.person.helped:
            found.append(f"batches that needed a person: {len(self.person.helped)}")
        return found

    def report(self) -> None:
        """Print the figures."""
        struck = self.injector.struck
        say(f"\nseed {self.options.seed} on {self.options.database}: {struck.total()} faults")
        for kind in FaultKind:
            if struck[kind]:
                say(f"  {struck[kind]:4d}  {kind}")
        repeated = sum(customer.repeated for customer in self.customers)
        acknowledged = sum(len(customer.acknowledged) for customer in self.customers)
        say(f"requests acknowledged: {acknowledged}; sent again without an answer: {repeated}")
        starts = ", ".join(f"{part.name} {part.starts}" for part in self.service.parts.values())
        say(f"starts of each part: {starts}")
        say(f"batches that needed a person: {len(self.person.helped)}")
        for batch, reason in self.person.helped.items():
            say(f"  {batch}: {reason}")


def main() -> int:
    """Run once and return the exit code: 0 if nothing is wrong, 1 otherwise."""
    options, begun = arguments(), time.monotonic()
    with running_service(options) as service:
        run = Run(service, options)
        register_models(service)
        say(f"ready after {time.monotonic() - begun:.0f} s")
        run.disturb()
        say(f"{run.injector.struck.total()} faults after {time.monotonic() - begun:.0f} s")
        findings = run.findings()
        run.report()
        for finding in findings:
            say(f"WRONG: {finding}")
        verdict = "something is wrong" if findings else "nothing is wrong"
        say(f"{verdict}, {time.monotonic() - begun:.0f} s")
        if findings:
            kept = shutil.copy(service.folder / "log", Path(tempfile.mkdtemp(prefix="lethe-chaos-log-")))
            say(f"The log is in {kept}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
