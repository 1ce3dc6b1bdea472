"""State changes live in `app/db/transitions`, and every kind of event has a declared meaning."""

import ast
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import pytest

from app.db.states import EventKind, HeldReason, RefusalReason
from app.db.webhooks import NOTICE_OF_EVENT, DisabledReason, NoticeKind

ROOT = Path(__file__).parents[3]
HOME = ROOT / "app" / "db" / "transitions"


def state_changes(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that assign a `state` attribute, update a `state` column or prepare such an update.

    A dictionary with the key "state" and a member of a `…State` enum counts, wherever it is built, because it
    may reach `update(…).values(…)` through a variable. So does any dictionary with such a key in the
    statement that updates. SQL as text counts if it updates a table and names the column.

    Creating a row with its initial state is not a change. So keyword arguments of a constructor are not
    looked at (`Version(state=…)`), and neither are the values of `insert(…)`: no row has had another state
    before. What an insert does to a row that is already there (`set_`) is a change.
    """
    nodes = list(ast.walk(tree))
    inserted = {id(inner) for node in nodes if _is_insert(node) for inner in ast.walk(node)}
    updated = {id(inner) for node in nodes if _is_update(node) for inner in ast.walk(node)}
    overwritten = {id(inner) for node in nodes if _overwrites(node) for inner in ast.walk(node)}
    for node in nodes:
        in_update = id(node) in updated or id(node) in overwritten
        match node:
            case ast.Attribute(attr="state", ctx=ast.Store()):
                changes = not _is_own(node)
            case ast.Call(func=ast.Name(id="setattr"), args=[_, name, _]):
                changes = _is_state_key(name)
            case ast.Call(func=ast.Attribute(attr="values"), keywords=keywords):
                changes = not _is_insert(node) and any(keyword.arg == "state" for keyword in keywords)
            case ast.Dict(keys=keys, values=values) if in_update or id(node) not in inserted:
                pairs = zip(keys, values, strict=True)
                changes = any(
                    _is_state_key(key) and (in_update or _is_state_member(value)) for key, value in pairs
                )
            case ast.Constant(value=str(text)):
                changes = (
                    re.search(r"\bUPDATE\s+\w+\s+SET\b[^;]*\bstate\s*=", text, re.IGNORECASE) is not None
                )
            case _:
                changes = False
        if changes:
            yield getattr(node, "lineno", 0)


def _is_own(name: ast.Attribute) -> bool:
    return isinstance(name.value, ast.Name) and name.value.id == "self"


def _is_insert(node: ast.AST) -> bool:
    return _is_statement(node, "insert")


def _is_update(node: ast.AST) -> bool:
    return _is_statement(node, "update")


def _is_statement(node: ast.AST, verb: str) -> bool:
    """Whether this is a call such as `insert(…)…`, or `….execute(insert(…), …)`."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("execute", "scalar", "scalars"):
        return any(_is_statement(argument, verb) for argument in node.args[:1])
    if isinstance(node.func, ast.Attribute):
        return node.func.attr == verb or _is_statement(node.func.value, verb)
    return isinstance(node.func, ast.Name) and node.func.id == verb


def _overwrites(node: ast.AST) -> bool:
    """Whether this is the `set_=…` of an insert, which changes the row that is already there."""
    return isinstance(node, ast.keyword) and node.arg == "set_"


def _is_state_key(key: ast.expr | None) -> bool:
    """Whether this is `"state"`, or a column like `Task.state`."""
    if isinstance(key, ast.Attribute):
        return key.attr == "state"
    return isinstance(key, ast.Constant) and key.value == "state"


def _is_state_member(value: ast.expr) -> bool:
    """Whether this is `SomeState.MEMBER`, of a module or not."""
    if not isinstance(value, ast.Attribute):
        return False
    enum = value.value.attr if isinstance(value.value, ast.Attribute) else getattr(value.value, "id", "")
    return enum.endswith("State")


def test_no_state_is_changed_outside_transitions() -> None:
    changes = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in ("app", "worker")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not path.is_relative_to(HOME)
        for line in state_changes(ast.parse(path.read_text()))
    ]
    assert changes == []


@pytest.mark.parametrize(
    "code",
    [
        "batch.state = BatchState.HELD",
        "batch.state, batch.error = BatchState.HELD, None",
        "update(Task).values(state=TaskState.FAILED)",
        "update(Task).values({'state': TaskState.FAILED})",
        "ended = {'state': TaskState.FAILED, 'completed_at': now}",
        "values |= {'state': states.TaskState.FAILED}",
        "batch.state: str = BatchState.HELD",
        "(batch.error, [batch.state, batch.step]) = None, (state, None)",
        "self.batch.state = state",
        "for batch.state in states: pass",
        "setattr(batch, 'state', state)",
        "update(Task).values({Task.state: state})",
        "update(Task).values(**{'state': state})",
        "session.execute(update(Task), [{'id': task_id, 'state': state}])",
        "session.query(Task).update({'state': 'failed'})",
        "insert(Task).values(id=1).on_conflict_do_update(set_={'state': 'failed'})",
        "text('UPDATE tasks SET completed_at = :now, state = :state')",
    ],
)
def test_the_check_finds_a_state_change(code: str) -> None:
    assert list(state_changes(ast.parse(code))) == [1]


@pytest.mark.parametrize(
    "code",
    [
        "session.add(Version(state=VersionState.CURRENT))",
        "session.execute(insert(Task), [{'state': TaskState.RECEIVED}])",
        "insert(Task).values(state=TaskState.RECEIVED).returning(Task.id)",
        "select(Task).where(Task.state == TaskState.RECEIVED)",
        "answer = {'state': batch.state}",
        "self.state = state",
        "update(Task).where(Task.state == TaskState.RECEIVED).values(due_at=due_at)",
        "text('SELECT state FROM tasks')",
    ],
)
def test_reading_a_state_and_creating_a_row_are_not_changes(code: str) -> None:
    assert list(state_changes(ast.parse(code))) == []


def test_every_event_kind_says_whether_webhooks_are_told() -> None:
    assert set(NOTICE_OF_EVENT) == set(EventKind)


@pytest.mark.parametrize("enum", [EventKind, NoticeKind, RefusalReason, DisabledReason])
def test_an_unknown_kind_is_an_error(enum: type[StrEnum]) -> None:
    with pytest.raises(ValueError, match="completd"):
        enum("completd")


def test_every_reason_to_hold_a_batch_is_a_reason_for_a_refusal() -> None:
    assert {RefusalReason(reason) for reason in HeldReason} < set(RefusalReason)
