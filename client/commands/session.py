"""What every verb has: the service, `--json` or a table, and an exit status that scripts can use.

0  done, and the answer is yes
1  the answer is no: not verified, failed, held, or not possible as things stand
2  wrong usage or unusable input
3  the service cannot be reached, or failed
4  the API key is missing, unknown, or lacks a scope
5  no such thing, or not any more
6  not ended within --timeout
130  interrupted
"""

import functools
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec

import typer
from rich.console import Console, RenderableType

if TYPE_CHECKING:
    from client.api import Lethe

P = ParamSpec("P")
YES, NO, USAGE, UNREACHABLE, REFUSED, MISSING, TOO_LATE = range(7)
PLAIN_WIDTH = 200  # of a table that goes into a file or a pipe

Url = Annotated[str | None, typer.Option("--url", envvar="LETHE_URL", help="Where the service answers.")]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key", envvar="LETHE_API_KEY", help="Better kept in LETHE_API_KEY.", show_envvar=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document instead of a table.")]
Timeout = Annotated[float | None, typer.Option("--timeout", min=0, help="Seconds to wait at most.")]


class Unusable(Exception):
    """Wrong usage that only looking at the input could show."""


class Session:
    """One run of a verb."""

    def __init__(self, url: str | None, api_key: str | None, as_json: bool) -> None:
        self._url, self._api_key, self.as_json = url, api_key, as_json
        self.out = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False)
        self.notes = Console(stderr=True, highlight=False)

    @cached_property
    def api(self) -> "Lethe":
        from client.api import Lethe
        from client.requests import Retry

        return Lethe(self._url, self._api_key, retry=Retry(times=3))  # someone waits

    def show(self, answer: Any, *shown: RenderableType) -> None:
        """`answer` as JSON, or what is to be shown of it to a person."""
        if self.as_json:
            sys.stdout.write(json.dumps(plain(answer), indent=2, ensure_ascii=False) + "\n")
            return
        for part in shown:
            self.out.print(part, markup=False) if isinstance(part, str) else self.out.print(part)

    def note(self, text: str) -> None:
        """For a person that waits; never on standard output."""
        if not self.as_json:
            self.notes.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        if "api" in self.__dict__:
            self.api.close()


def plain(answer: Any) -> Any:
    from pydantic import BaseModel

    if isinstance(answer, BaseModel):
        return answer.model_dump(mode="json", by_alias=True)
    if isinstance(answer, Mapping):
        return {str(name): plain(value) for name, value in answer.items()}
    if isinstance(answer, Sequence) and not isinstance(answer, str):
        return [plain(value) for value in answer]
    return answer if answer is None or isinstance(answer, bool | int | float) else str(answer)


def verb(command: Callable[Concatenate[Session, P], int | None]) -> Callable[..., None]:
    """Give a verb its session, and the options that all have: --url, --api-key, --json."""

    @functools.wraps(command)
    def run(*, url: Url = None, api_key: ApiKey = None, as_json: AsJson = False, **given: Any) -> None:
        session = Session(url, api_key, as_json)
        try:
            raise typer.Exit(_guarded(session, lambda: command(session, **given)))  # type: ignore[call-arg]
        finally:
            session.close()

    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    common = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, kind, default in (("url", Url, None), ("api_key", ApiKey, None), ("as_json", AsJson, False))
    ]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + common
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _guarded(session: Session, command: Callable[[], int | None]) -> int:
    from certificate.errors import UnusableInput
    from client.errors import LetheError

    try:
        return command() or YES
    except LetheError as problem:
        from client.commands.refusals import code_of, document, next_step

        return _refuse(session, code_of(problem), document(problem), next_step(problem))
    except (Unusable, UnusableInput, OSError) as problem:
        return _refuse(session, USAGE, {"title": str(problem)}, "")
    except KeyboardInterrupt:
        session.note("Interrupted. What the service does goes on.")
        return 130


def _refuse(session: Session, code: int, problem: Mapping[str, Any], next_step: str) -> int:
    text = ": ".join(str(problem[part]) for part in ("title", "detail") if problem.get(part))
    session.notes.print(
        f"lethe: {text.rstrip('.')}.{' ' + next_step if next_step else ''}", markup=False, soft_wrap=True
    )
    session.show({"error": problem}) if session.as_json else None
    return code
