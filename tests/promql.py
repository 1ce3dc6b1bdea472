"""A small reader of PromQL: enough to refuse what does not parse, and to tell which series are asked for."""

import re
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?![smhdwy\w])|(?P<duration>\d+[smhdwy](?:\d+[smhdwy])*)\b"
    r"|(?P<string>\"(?:[^\"\\]|\\.)*\")|(?P<name>[a-zA-Z_:][\w:]*)|(?P<mark>[=!]~|[=!<>]=|[-+*/%^(){}\[\],=<>]))"
)
AGGREGATES = {"sum", "min", "max", "avg", "count", "topk", "bottomk", "quantile"}
FUNCTIONS = {"rate", "increase", "deriv", "absent", "histogram_quantile", "time", "clamp_min", "abs"}
RANGED = {"rate", "increase", "deriv"}
COMPARE = {"==", "!=", "<", ">", "<=", ">="}
BINARY = ({"or"}, {"and", "unless"}, COMPARE, {"+", "-"}, {"*", "/", "%"})


class NotPromQl(ValueError):
    pass


@dataclass
class Query:
    """Which metrics, and which labels of each are matched."""

    metrics: dict[str, set[str]] = field(default_factory=dict)


class Parser:
    def __init__(self, text: str) -> None:
        self.tokens, self.at, self.query = _tokens(text), 0, Query()
        self._binary(0)
        if self.at != len(self.tokens):
            raise NotPromQl(f"unexpected {self.tokens[self.at][1]!r} in {text!r}")

    def _peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def _take(self, wanted: str = "", kind: str = "") -> str:
        if self.at >= len(self.tokens):
            raise NotPromQl(f"ends where {wanted or kind} is due")
        found_kind, found = self.tokens[self.at]
        if (wanted and found != wanted) or (kind and found_kind != kind):
            raise NotPromQl(f"{found!r} where {wanted or kind} is due")
        self.at += 1
        return found

    def _binary(self, level: int) -> None:
        if level == len(BINARY):
            return self._primary()
        self._binary(level + 1)
        while self._peek() in BINARY[level]:
            operator = self._take()
            if self._peek() == "bool" and operator in COMPARE:
                self._take()
            if self._peek() in ("on", "ignoring"):
                self._take()
                self._labels()
            self._binary(level + 1)
        return None

    def _primary(self) -> None:
        kind, word = self.tokens[self.at] if self.at < len(self.tokens) else ("", "")
        if word == "(":
            self._take()
            self._binary(0)
            self._take(")")
        elif kind in ("number", "string"):
            self._take()
        elif kind != "name":
            raise NotPromQl(f"{word!r} where an expression is due")
        elif word in AGGREGATES:
            self._aggregate()
        elif word in FUNCTIONS:
            self._arguments(ranged=self._take() in RANGED)
        else:
            self._selector()

    def _aggregate(self) -> None:
        self._take()
        grouped = self._grouping()
        self._arguments(ranged=False)
        if not grouped:
            self._grouping()

    def _grouping(self) -> bool:
        if self._peek() not in ("by", "without"):
            return False
        self._take()
        self._labels()
        return True

    def _labels(self) -> None:
        self._take("(")
        while self._peek() != ")":
            self._take(kind="name")
            if self._peek() != ")":
                self._take(",")
        self._take(")")

    def _arguments(self, *, ranged: bool) -> None:
        self._take("(")
        while self._peek() != ")":
            self._selector(ranged=True) if ranged else self._binary(0)
            if self._peek() != ")":
                self._take(",")
        self._take(")")

    def _selector(self, *, ranged: bool = False) -> None:
        labels = self.query.metrics.setdefault(self._take(kind="name"), set())
        if self._peek() == "{":
            self._take()
            while self._peek() != "}":
                labels.add(self._take(kind="name"))
                if self._take(kind="mark") not in ("=", "!=", "=~", "!~"):
                    raise NotPromQl("a matcher needs =, !=, =~ or !~")
                self._take(kind="string")
                if self._peek() != "}":
                    self._take(",")
            self._take("}")
        if ranged:
            self._take("[")
            self._take(kind="duration")
            self._take("]")


def _tokens(text: str) -> list[tuple[str, str]]:
    found, at = [], 0
    text = text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise NotPromQl(f"cannot read {text[at:]!r}")
        found.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return found


def parse(text: str) -> Query:
    return Parser(text).query
