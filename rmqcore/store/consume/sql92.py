"""Conditions on a message's properties: the part of SQL92 that RocketMQ's consumers filter by.

Comparison, BETWEEN, IN, IS NULL, CONTAINS, STARTSWITH, ENDSWITH, AND, OR, NOT, parentheses. A
condition is true, false or unknown; a message matches when it is true.

Source: RocketMQ filter/src/main/javacc/SelectorParser.jj, filter/expression/*.java.
Differs: what RocketMQ's parser leaves unread behind a condition (``a = 1 XOR b``) is refused here,
    as are a condition that can never be true, numbers compared with text, and chains of
    comparisons without parentheses; NOT binds weaker than a comparison (there, ``NOT a = 1`` never
    matches); ``!=`` is ``<>``.
"""

from __future__ import annotations

import operator
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Final, Literal, NoReturn, TypeAlias

#: A longer expression, in characters, is refused.
LENGTH_MAX: Final = 16_384
#: An expression with more parentheses and NOTs within each other is refused.
DEPTH_MAX: Final = 32
#: An expression with more comparisons, parentheses counted as one each, is refused: it would take
#: long to be read.
COMPARISONS_MAX: Final = 1000
#: The conditions of expressions are kept up to this many characters of text in all; each character
#: takes 170 bytes of memory.
_KEPT_LENGTH: Final = 128 << 10
_INT64_MAX: Final = 2**63 - 1
#: A number of more digits has more than 64 bits.
_DIGITS_MAX: Final = 19

Properties: TypeAlias = Mapping[str, str]
Value: TypeAlias = str | int | float | bool | None
Evaluation: TypeAlias = Callable[[Properties], Value]
Kind: TypeAlias = Literal["property", "string", "number", "boolean"]

#: blanks and comments; possessive, so that no text is looked at twice
_BLANK: Final = re.compile(r"(?:\s|--[^\n]*+|/\*.*?\*/)*+", re.DOTALL)
_TOKEN: Final = re.compile(
    r"""(?:(?P<number>(?:(?:0|[1-9][0-9]*+)(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?[lL]?)
      |(?P<string>'(?:[^']|'')*+')
      |(?P<word>[A-Za-z_$][A-Za-z0-9_$]*+)
      |(?P<sign><>|!=|<=|>=|[=<>(),+-])
      |(?P<end>\Z)
    )""",
    re.VERBOSE,
)
_WORDS: Final = ("AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "TRUE", "FALSE")
_KEYWORDS: Final = frozenset((*_WORDS, "CONTAINS", "STARTSWITH", "ENDSWITH"))
_LONG: Final = re.compile(r"[+-]?[0-9]{1,19}")
_DOUBLE: Final = re.compile(
    r"[+-]?(?:Infinity|(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?(?P<suffix>[fFdD]?))"
)
_ORDERINGS: Final = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TEXT_TESTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


class ExpressionError(ValueError):
    """An expression that cannot be used; its text says why, and at which character."""


@dataclass(frozen=True, slots=True)
class _Node:
    """A part of an expression.

    Attributes:
        kind: what its value is; "boolean" is a condition.
        evaluate: gives the value of one message; None is unknown.
        at: where it begins, counted from 0.
        literal: its value, when it is written down.
    """

    kind: Kind
    evaluate: Evaluation
    at: int
    literal: Value = None


@dataclass(frozen=True, slots=True)
class Condition:
    """Tells whether a message with some properties matches.

    It never raises: a property that has to be a number and is none makes that the message does not
    match.

    Attributes:
        evaluate: gives True for a message that matches.
        cost: comparisons that one message may take.
    """

    evaluate: Evaluation
    cost: int = 1

    def __call__(self, properties: Properties) -> bool:
        """Tell it of one message."""
        try:
            return self.evaluate(properties) is True
        except ValueError:
            return False


class _Compiled:
    """The conditions that were asked for last; as many as `_KEPT_LENGTH` characters make."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, Condition] = OrderedDict()
        self._length = 0
        self._lock = Lock()

    def get(self, expression: str) -> Condition:
        """The condition of an expression, compiled once."""
        with self._lock:
            found = self._found.get(expression)
            if found is not None:
                self._found.move_to_end(expression)
                return found
        found = _compile(expression)
        with self._lock:
            if expression not in self._found:
                self._found[expression] = found
                self._length += len(expression)
            while self._length > _KEPT_LENGTH:
                self._length -= len(self._found.popitem(last=False)[0])
        return found


def compile_condition(expression: str) -> Condition:
    """Make a function of an expression.

    Args:
        expression: ``price BETWEEN 10 AND 20 AND region IN ('EU', 'US')``.

    Raises:
        ExpressionError: it is none, or longer or deeper than what is read.
    """
    return _COMPILED.get(expression)


_COMPILED: Final = _Compiled()


def _compile(expression: str) -> Condition:
    if len(expression) > LENGTH_MAX:
        raise ExpressionError(
            f"an expression of {len(expression)} characters: at most {LENGTH_MAX} are read"
        )
    parser = _Parser(expression)
    evaluate = parser.whole().evaluate
    return Condition(evaluate, max(1, parser.cost))


class _Parser:
    """Reads one expression from left to right; each method reads what its name says."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._depth = 0
        #: comparisons so far
        self.cost = 0
        self._end = 0
        #: the token that comes next: its kind, its text (keywords in capitals), its place
        self._kind, self._token, self._at = "", "", 0
        self._advance()

    # ---- tokens

    def _advance(self) -> str:
        """Go on to the next token; return the one before."""
        before = self._token
        blank = _BLANK.match(self._text, self._end)
        self._at = blank.end() if blank else self._end
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            self._fail(f"{self._text[self._at]!r} is not understood")
        self._kind, self._token, self._end = match.lastgroup or "end", match[0], match.end()
        if self._kind == "word" and self._token.upper() in _KEYWORDS:
            self._kind, self._token = "keyword", self._token.upper()
        return before

    def _accept(self, *wanted: str) -> str | None:
        """Go on when the next token is one of these keywords or signs; None when it is not."""
        if self._kind in ("keyword", "sign") and self._token in wanted:
            return self._advance()
        return None

    def _expect(self, wanted: str) -> None:
        if self._accept(wanted) is None:
            self._fail(f"{wanted} is expected instead of {self._next()}")

    def _next(self) -> str:
        return "the end" if self._kind == "end" else self._token

    def _fail(self, reason: str, at: int | None = None) -> NoReturn:
        raise ExpressionError(f"at character {(self._at if at is None else at) + 1}: {reason}")

    # ---- conditions

    def whole(self) -> _Node:
        node = self._or()
        if self._kind != "end":
            self._fail(f"{self._next()} is not understood here")
        return self._condition(node)

    def _condition(self, node: _Node) -> _Node:
        if node.kind != "boolean":
            self._fail("a condition is expected; compare the value with something", node.at)
        return node

    def _or(self) -> _Node:
        return self._joined("OR", self._and, _any)

    def _and(self) -> _Node:
        return self._joined("AND", self._not, _all)

    def _joined(
        self,
        word: str,
        part: Callable[[], _Node],
        join: Callable[[tuple[Evaluation, ...]], Evaluation],
    ) -> _Node:
        nodes = [part()]
        while self._accept(word):
            nodes.append(part())
        if len(nodes) == 1:
            return nodes[0]
        evaluate = join(tuple(self._condition(node).evaluate for node in nodes))
        return _Node("boolean", evaluate, nodes[0].at)

    def _not(self) -> _Node:
        at = self._at
        if not self._accept("NOT"):
            return self._predicate()
        self._deeper(at)
        node = self._condition(self._not())
        self._depth -= 1
        return _negation(node, at)

    def _deeper(self, at: int) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._fail(f"more than {DEPTH_MAX} parentheses or NOTs within each other", at)

    def _predicate(self) -> _Node:
        self.cost += 1
        if self.cost > COMPARISONS_MAX:
            self._fail(f"more than {COMPARISONS_MAX} comparisons and parentheses")
        node = self._operand()
        sign = self._accept("=", "<>", "!=", "<", "<=", ">", ">=", "IS")
        if sign == "IS":
            negated = self._accept("NOT") is not None
            self._expect("NULL")
            return _Node("boolean", _is_null(node.evaluate, not negated), node.at)
        if sign in _ORDERINGS:
            return self._ordered(sign, node, self._operand())
        if sign is not None:
            equal = self._equal(node, self._operand())
            return equal if sign == "=" else _negation(equal, node.at)
        negated = self._accept("NOT") is not None
        word = self._accept("BETWEEN", "IN", *_TEXT_TESTS)
        if word == "BETWEEN":
            return self._between(node, negated)
        if word == "IN":
            return self._in(node, negated)
        if word is not None:
            return self._text_test(word, node, negated)
        if negated:
            self._fail(f"BETWEEN, IN or CONTAINS is expected instead of {self._next()}")
        return node

    def _operand(self) -> _Node:
        at = self._at
        if self._accept("("):
            self._deeper(at)
            node = self._or()
            self._expect(")")
            self._depth -= 1
            return node
        sign = self._accept("+", "-")
        if sign or self._kind == "number":
            return self._number(at, negative=sign == "-")
        if self._kind == "string":
            text = self._string()
            return _Node("string", lambda _: text, at, text)
        word = self._accept("TRUE", "FALSE")
        if word:
            value = word == "TRUE"
            return _Node("boolean", lambda _: value, at, value)
        if self._kind != "word":
            self._fail(f"a property or a value is expected instead of {self._next()}")
        name = self._advance()
        return _Node("property", lambda properties: properties.get(name), at)

    def _number(self, at: int, *, negative: bool) -> _Node:
        if self._kind != "number":
            self._fail(f"a number is expected instead of {self._next()}")
        digits = self._advance()
        value: int | float
        whole = digits.rstrip("lL")
        if whole.isdigit():
            value = int(whole) if len(whole) <= _DIGITS_MAX else _INT64_MAX + 2
            value = -value if negative else value
            if not -_INT64_MAX - 1 <= value <= _INT64_MAX:
                self._fail("a whole number has 64 bits", at)
        elif digits[-1] in "lL":
            self._fail("L stands behind whole numbers only", at)
        else:
            value = -float(digits) if negative else float(digits)
        return _Node("number", lambda _: value, at, value)

    def _string(self) -> str:
        if self._kind != "string":
            self._fail(f"a string is expected instead of {self._next()}")
        return self._advance()[1:-1].replace("''", "'")

    # ---- comparisons

    def _equal(self, left: _Node, right: _Node) -> _Node:
        kinds = {left.kind, right.kind}
        if len(kinds) > 1 and "property" not in kinds:
            self._fail(f"a {left.kind} cannot be compared with a {right.kind}", right.at)
        first, second = _as_other(left, right), _as_other(right, left)

        def evaluate(properties: Properties) -> Value:
            one, other = first(properties), second(properties)
            if one is None and other is not None:
                return None
            return one == other

        return _Node("boolean", evaluate, left.at)

    def _ordered(self, sign: str, left: _Node, right: _Node) -> _Node:
        for node in (left, right):
            if node.kind not in ("property", "number"):
                self._fail(f"a {node.kind} cannot be compared by {sign}", node.at)
        first, second = _as_number(left, right), _as_number(right, left)
        compare = _ORDERINGS[sign]

        def evaluate(properties: Properties) -> Value:
            one = first(properties)
            if one is None:
                return None
            other = second(properties)
            return None if other is None else compare(one, other)

        return _Node("boolean", evaluate, left.at)

    def _between(self, node: _Node, negated: bool) -> _Node:
        least = self._operand()
        self._expect("AND")
        most = self._operand()
        first, last = least.literal, most.literal
        if isinstance(first, int | float) and isinstance(last, int | float) and first > last:
            self._fail("nothing lies between these: the smaller one comes first", least.at)
        if negated:
            parts = self._ordered("<", node, least), self._ordered(">", node, most)
            return _Node("boolean", _any(tuple(each.evaluate for each in parts)), node.at)
        parts = self._ordered(">=", node, least), self._ordered("<=", node, most)
        return _Node("boolean", _all(tuple(each.evaluate for each in parts)), node.at)

    def _in(self, node: _Node, negated: bool) -> _Node:
        if node.kind != "property":
            self._fail("IN stands behind a property only", node.at)
        self._expect("(")
        texts = {self._string()}
        while self._accept(","):
            texts.add(self._string())
        self._expect(")")

        def evaluate(properties: Properties) -> Value:
            value = node.evaluate(properties)
            return None if value is None else (value in texts) is not negated

        return _Node("boolean", evaluate, node.at)

    def _text_test(self, word: str, node: _Node, negated: bool) -> _Node:
        if node.kind not in ("property", "string"):
            self._fail(f"{word} stands behind a property or a string only", node.at)
        part, test = self._string(), _TEXT_TESTS[word]

        def evaluate(properties: Properties) -> Value:
            value = node.evaluate(properties)
            return bool(part) and isinstance(value, str) and test(value, part) is not negated

        return _Node("boolean", evaluate, node.at)


def _all(parts: tuple[Evaluation, ...]) -> Evaluation:
    def evaluate(properties: Properties) -> Value:
        result: Value = True
        for part in parts:
            value = part(properties)
            if value is False:
                return False
            if value is None:
                result = None
        return result

    return evaluate


def _any(parts: tuple[Evaluation, ...]) -> Evaluation:
    def evaluate(properties: Properties) -> Value:
        result: Value = False
        for part in parts:
            value = part(properties)
            if value is True:
                return True
            if value is None:
                result = None
        return result

    return evaluate


def _negation(node: _Node, at: int) -> _Node:
    inner = node.evaluate

    def evaluate(properties: Properties) -> Value:
        value = inner(properties)
        return None if value is None else not value

    return _Node("boolean", evaluate, at)


def _is_null(inner: Evaluation, wanted: bool) -> Evaluation:
    return lambda properties: (inner(properties) is None) is wanted


def _as_other(node: _Node, other: _Node) -> Evaluation:
    """How the value of a node is read that is asked whether it equals another."""
    if node.kind == "property" and other.kind == "number":
        return _as_number(node, other)
    if node.kind == "property" and other.kind == "boolean":
        return _read(node.evaluate, lambda text: text.lower() == "true")
    return node.evaluate


def _as_number(node: _Node, other: _Node) -> Evaluation:
    """How the value of a node is read that is compared with a number, or with a property."""
    if node.kind != "property":
        return node.evaluate
    return _read(node.evaluate, _long if isinstance(other.literal, int) else _double)


def _read(text_of: Evaluation, read: Callable[[str], Value]) -> Evaluation:
    def evaluate(properties: Properties) -> Value:
        text = text_of(properties)
        return read(text) if isinstance(text, str) else None

    return evaluate


def _long(text: str) -> int:
    """Read a whole number as java.lang.Long, valueOf does; raises ValueError."""
    if _LONG.fullmatch(text):
        value = int(text)
        if -_INT64_MAX - 1 <= value <= _INT64_MAX:
            return value
    raise ValueError(f"{text[:40]!r} is no whole number")


def _double(text: str) -> float:
    """Read a number as java.lang.Double, valueOf does; raises ValueError."""
    match = _DOUBLE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text[:40]!r} is no number")
    return float(match[0].removesuffix(match["suffix"] or " "))
