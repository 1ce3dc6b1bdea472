"""What every command of the client has: the service, output as a table or JSON, and error handling."""

import errno
import functools
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec

import typer
from rich.console import Console, RenderableType

from lethe.cli.exit_status import ExitStatus, next_step, problem_document, status_of
from lethe.cli.usage import print_problem
from lethe.client.errors import LetheError

if TYPE_CHECKING:
    from lethe.client.api import Lethe

P = ParamSpec("P")
PLAIN_WIDTH = 200  # columns of a table that is written to a file or a pipe

Url = Annotated[
    str | None, typer.Option("--url", envvar="LETHE_URL", help="Address of the service.", metavar="URL")
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        envvar="LETHE_API_KEY",
        help="API key. Prefer to set LETHE_API_KEY: others can read your command line.",
        metavar="KEY",
        show_envvar=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]
Timeout = Annotated[
    float | None, typer.Option("--timeout", min=0, metavar="SECONDS", help="Stop waiting after this time.")
]


class UsageError(Exception):
    """The input of a command is invalid in a way that only reading it could reveal."""


class CommandContext:
    """The service and the output of one run of a command.

    `out` is standard output, for results. `notes` is standard error, for everything else.
    """

    def __init__(self, url: str | None, api_key: str | None, as_json: bool) -> None:
        self._url, self._api_key, self.as_json = url, api_key, as_json
        self.out = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False)
        self.notes = Console(stderr=True, highlight=False)

    @cached_property
    def api(self) -> "Lethe":
        """The client of the service."""
        return self.connect(self._url, self._api_key)

    @staticmethod
    def connect(url: str | None, api_key: str | None) -> "Lethe":
        """Return a client for an address and a key. Raises `UsageError` if they cannot be right."""
        from lethe.client.api import Lethe
        from lethe.client.stored_login import find_access
        from lethe.client.transport import Retry

        url, api_key = find_access(url, api_key)
        check_url(url)
        if api_key is not None and not (api_key.isascii() and api_key.isprintable() and " " not in api_key):
            raise UsageError("the API key contains characters that no key has; copy it again, without spaces")
        return Lethe(url, api_key, retry=Retry(times=3))  # someone is waiting at the terminal

    @property
    def access(self) -> tuple[str | None, str | None]:
        """The address and the key from --url and --api-key or their environment variables, if any."""
        return self._url, self._api_key

    @property
    def interactive(self) -> bool:
        """Whether to draw progress bars: a person is watching standard error."""
        return self.notes.is_terminal and not self.as_json

    def show(self, result: Any, *renderables: RenderableType) -> None:
        """Print the result as JSON, or the renderables for a person."""
        if self.as_json:
            sys.stdout.write(json.dumps(as_plain_data(result), indent=2, ensure_ascii=False) + "\n")
            return
        for part in renderables:
            self.out.print(part, markup=False) if isinstance(part, str) else self.out.print(part)

    def note(self, text: str) -> None:
        """Print a line for a person on standard error. With --json, print nothing."""
        if not self.as_json:
            self.notes.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Close the connection to the service, if there is one."""
        if "api" in self.__dict__:
            self.api.close()


def check_url(url: str | None) -> None:
    """Raise `UsageError` if a text cannot be the address of a service."""
    from urllib.parse import urlsplit

    try:
        parts = None if url is None else urlsplit(url)
        usable = parts is None or (parts.scheme in ("http", "https") and bool(parts.hostname))
        _ = None if parts is None else parts.port
    except ValueError:
        usable = False
    if not usable:
        raise UsageError(
            f"{url} is not the address of a service; write it as http://127.0.0.1:8420 in --url or LETHE_URL"
        )


def describe_os_error(error: OSError) -> str:
    """Say in plain words why a file could not be read or written.

    >>> describe_os_error(FileNotFoundError(2, "No such file or directory", "people.txt"))
    'there is no file or folder named people.txt'
    """
    name = error.filename
    match error:
        case FileNotFoundError() if name is not None:
            return f"there is no file or folder named {name}"
        case PermissionError() if name is not None:
            return f"this user may not open {name}; change its permissions, or choose another file"
        case IsADirectoryError() if name is not None:
            return f"{name} is a folder, not a file"
        case NotADirectoryError() if name is not None:
            return f"{name} is below something that is not a folder"
        case FileExistsError() if name is not None:
            return f"{name} exists already; choose another name"
    if error.errno == errno.ENOSPC:
        return "the disk is full; free some space and run the command again"
    reason = (error.strerror or "the operating system gave no reason").lower()
    return f"{name} cannot be used: {reason}" if name is not None else reason


def as_plain_data(value: Any) -> Any:
    """Convert responses, mappings and sequences to data that JSON can express."""
    from pydantic import BaseModel

    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    if isinstance(value, Mapping):
        return {str(name): as_plain_data(inner) for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [as_plain_data(inner) for inner in value]
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def command(function: Callable[Concatenate[CommandContext, P], int | None]) -> Callable[..., None]:
    """Turn a function into a command: pass it a context, and add --url, --api-key and --json.

    The function returns an exit status, or None for success. Errors become one line on standard error and an
    exit status.
    """

    @functools.wraps(function)
    def run(*, url: Url = None, api_key: ApiKey = None, as_json: AsJson = False, **arguments: Any) -> None:
        context = CommandContext(url, api_key, as_json)
        try:
            status = _run(context, lambda: function(context, **arguments))  # type: ignore[call-arg]
            raise typer.Exit(status)
        finally:
            context.close()

    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    common = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, kind, default in (("url", Url, None), ("api_key", ApiKey, None), ("as_json", AsJson, False))
    ]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + common
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _run(context: CommandContext, function: Callable[[], int | None]) -> int:
    from lethe.certificate.errors import UnusableInput

    try:
        return function() or ExitStatus.DONE
    except LetheError as error:
        return _report(context, status_of(error), problem_document(error), next_step(error))
    except (UsageError, UnusableInput) as error:
        return _report(context, ExitStatus.USAGE, {"title": str(error)}, "")
    except OSError as error:
        return _report(context, ExitStatus.USAGE, {"title": describe_os_error(error)}, "")
    except KeyboardInterrupt:
        context.note("Interrupted. Work on the server continues.")
        return ExitStatus.INTERRUPTED


def _report(context: CommandContext, status: ExitStatus, problem: Mapping[str, Any], step: str) -> ExitStatus:
    text = ": ".join(str(problem[part]) for part in ("title", "detail") if problem.get(part))
    print_problem(f"{text.rstrip('.')}. {step}" if step else text)
    if context.as_json:
        context.show({"error": problem})
    return status
