"""Wrong calls and help texts in plain words: one line per mistake, and no names of Python types."""

import difflib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import typer
import typer.core
from rich.console import Console

from lethe.cli.exit_status import ExitStatus

# The errors of the library below typer. It is private there, so it is reached through what typer exports.
CommandLineError: type[Exception] = typer.BadParameter.__mro__[2]
IDENTIFIERS_ARE_NOT_ARGUMENTS = (
    "identifiers are not taken as arguments, because other users of this machine can see them"
)
_PATH_PROBLEM = re.compile(
    r"""(?:Value error, )?(?P<kind>\w+) (?P<quote>['"])(?P<path>.*)(?P=quote) """
    r"(?P<problem>does not exist|is a directory|is a file|is not readable|is not writable)\.",
    re.DOTALL | re.IGNORECASE,
)
_SIMILAR = 0.7  # how much a word must resemble a name to be suggested, from 0 to 1


class PlainCommands(typer.core.TyperGroup):
    """A group whose wrong calls end with one line on standard error and exit status 2."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line and exit. Without `standalone_mode`, return the exit status."""
        hide_types(self)
        try:
            status = super().main(
                args,
                prog_name,
                complete_var,
                standalone_mode=False,
                windows_expand_args=windows_expand_args,
                **extra,
            )
        except typer.Abort:
            print_problem("cancelled, and nothing was changed")
            status = ExitStatus.INTERRUPTED
        except CommandLineError as error:
            status = _report(error)
        status = status if isinstance(status, int) else ExitStatus.DONE
        if standalone_mode:
            sys.exit(status)
        return status


def print_problem(text: str) -> None:
    """Print one line on standard error that starts with the program's name."""
    text = text.encode(errors="replace").decode()  # an argument need not be valid UTF-8
    line = f"lethe: {' '.join(text.split()).rstrip('.')}."
    Console(stderr=True).print(line, markup=False, highlight=False, soft_wrap=True)


def hide_types(command: Any) -> None:
    """Remove the types of parameters from the help texts of a command and of the commands below it.

    What remains is the placeholder, such as FILE, and for a flag nothing.
    """
    for parameter in (*command.params, command.get_help_option(typer.Context(command))):
        if parameter is not None:
            parameter.display_type_rich = _placeholder(parameter)
            parameter._get_number_range_help_str = lambda: None  # the description says what matters
    for inner in getattr(command, "commands", {}).values():
        hide_types(inner)


def _placeholder(parameter: Any) -> Callable[..., str | None]:
    is_option = parameter.param_type_name == "option"
    flag = getattr(parameter, "is_flag", False)
    text = (parameter.metavar or str(parameter.name).upper()) if is_option and not flag else None
    return lambda ctx=None: text  # noqa: ARG005  (the signature of the method it replaces)


def _report(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        return int(error.exit_code)  # the help was printed when the error was made
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "lethe"
    print_problem(_describe(error, command, context))
    return ExitStatus.USAGE


def _describe(error: Any, command: str, context: Any) -> str:
    see = f"To see what it takes, run `{command} --help`"
    message = str(error.format_message())
    match type(error).__name__:
        case "MissingParameter":
            return f"`{command}` needs {_describe_parameter(error.param)}. {see}"
        case "NoSuchOption":
            guess = _suggest(error.option_name, _options(context))
            return f"`{command}` has no option {error.option_name}. {guess}{see}"
        case "BadOptionUsage" if "does not take" in message:
            return f"{error.option_name} takes no value; leave out the equals sign and what follows it"
        case "BadOptionUsage":
            return f"{error.option_name} needs a value; write it after the option"
        case "BadParameter":
            return _describe_value(error)
    if match := re.match(r"No such command '(.*?)'", message, re.DOTALL):
        guess = _suggest(match[1], context.command.list_commands(context), prefix=f"{command} ")
        return (
            f"there is no command `{command} {match[1]}`. {guess}To list the commands, run `{command} --help`"
        )
    if match := re.match(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", message, re.DOTALL):
        return _describe_extra(command, context, match[1], see)
    return message


def _describe_extra(command: str, context: Any, extra: str, see: str) -> str:
    if command == "lethe erase":
        return (
            f"{IDENTIFIERS_ARE_NOT_ARGUMENTS}. Write one per line to a file and run `lethe erase FILE`, or "
            "run `lethe erase -` and type them"
        )
    names = [_describe_parameter(p) for p in context.command.params if p.param_type_name == "argument"]
    takes = f"takes only {' and '.join(names)}" if names else "takes no arguments"
    return f"`{command}` {takes}, so it cannot use {extra}. {see}"


def _describe_parameter(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper()).removesuffix("...")
    return f"{parameter.opts[0]} {parameter.metavar or parameter.name.upper()}"


def _describe_value(error: Any) -> str:
    """Say what is wrong with the value of an option or an argument."""
    parameter = error.param
    if parameter is None:
        return str(error.message)
    name = parameter.opts[0] if parameter.param_type_name == "option" else _describe_parameter(parameter)
    if match := _PATH_PROBLEM.fullmatch(error.message):
        return _describe_path(name, match["path"], match["problem"])
    problems = error.__cause__.errors() if hasattr(error.__cause__, "errors") else []
    if not problems:
        return str(error.message)
    first = problems[0]
    limits, value = first.get("ctx", {}), first.get("input")
    value = value[0] if isinstance(value, list | tuple) and len(value) == 1 else value
    rules = {
        "int_parsing": "must be a whole number",
        "int_from_float": "must be a whole number",
        "float_parsing": "must be a number",
        "finite_number": "must be a number",
        "greater_than_equal": f"must be at least {_limit(limits.get('ge'))}",
        "greater_than": f"must be more than {_limit(limits.get('gt'))}",
        "less_than_equal": f"must be at most {_limit(limits.get('le'))}",
        "less_than": f"must be less than {_limit(limits.get('lt'))}",
        "uuid_parsing": "must be an id",
    }
    if rule := rules.get(first["type"]):
        return f"{name} {rule}, but it is {value}"
    if choices := re.search(r"'(.*)' is not one of (.*)\.", error.message, re.DOTALL):
        return f"{name} must be one of {choices[2].replace(chr(39), '')}, but it is {choices[1]}"
    return str(limits.get("error", error.message))


def _limit(number: Any) -> str:
    return f"{number:g}" if isinstance(number, float) else str(number)


def _describe_path(name: str, path: str, problem: str) -> str:
    match problem.lower():
        case "does not exist":
            return f"there is no file named {path}, which {name} names"
        case "is a directory":
            return f"{path} is a folder, but {name} must be a file"
        case "is a file":
            return f"{path} is a file, but {name} must be a folder"
        case _:
            return f"this user may not open {path}, which {name} names"


def _options(context: Any) -> Iterator[str]:
    for parameter in context.command.params if context is not None else ():
        if parameter.param_type_name == "option":
            yield from parameter.opts


def _suggest(word: str, names: Iterable[str], prefix: str = "") -> str:
    close = difflib.get_close_matches(word, list(names), n=1, cutoff=_SIMILAR)
    return f"Did you mean `{prefix}{close[0]}`? " if close else ""
