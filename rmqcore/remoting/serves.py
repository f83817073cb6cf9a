"""`serves`: a request code is declared at the method that answers it, with what it needs.

    class Greetings:
        @serves(RequestCode.HEART_BEAT, needs=needs.any_account)
        def greet(self, connection: Connection, request: RemotingCommand) -> RemotingCommand: ...

What a server hands over (`processors_of`), what its gate asks for (`needs_of`) and the tables of
`docs/broker.md` are read from these declarations, so no request is served without its permission.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from rmqcore.errors import ArgumentError
from rmqcore.remoting.codes import RequestCode
from rmqcore.remoting.connection import Processor
from rmqcore.remoting.needs import AdminOnly, Rule

_DECLARED: Final = "rmq_serves"

_Method = TypeVar("_Method", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Served:
    """One request code, as its handler declares it.

    Attributes:
        code: of the request.
        needs: what it needs.
        method: name of the method that answers it.
        about: the first line of that one's docstring.
    """

    code: RequestCode
    needs: Rule
    method: str
    about: str


def serves(*codes: RequestCode, needs: Rule) -> Callable[[_Method], _Method]:
    """Declare which requests a method answers, and what whoever sends them needs.

    Args:
        codes: of the requests; each is answered by one method of a server's handlers.
        needs: a rule of `rmqcore.remoting.needs`, or one beside the method; its `ADMIN` where only
            administrators may send the request.

    Raises:
        ArgumentError: no code is named, or what is needed is no rule.
    """
    if not codes or not all(isinstance(code, RequestCode) for code in codes):
        raise ArgumentError("codes", codes, "one RequestCode or more")
    if not (callable(needs) or isinstance(needs, AdminOnly)):
        raise ArgumentError("needs", needs, "a rule of rmqcore.remoting.needs, or its ADMIN")

    def declare(method: _Method) -> _Method:
        if hasattr(method, _DECLARED):
            rule = "declared once: name all its codes in one @serves"
            raise ArgumentError("method", method.__qualname__, rule)
        about = (method.__doc__ or "").partition("\n")[0]
        served = tuple(Served(code, needs, method.__name__, about) for code in codes)
        setattr(method, _DECLARED, served)
        return method

    return declare


def declared_by(*handlers: type) -> Iterator[Served]:
    """What handlers declare, in the order of their methods.

    Args:
        handlers: the classes whose objects answer the requests of one server.

    Raises:
        ArgumentError: two methods declare the same code.
    """
    seen: dict[RequestCode, str] = {}
    for handler in handlers:
        for name in dict.fromkeys(
            name for each in reversed(handler.__mro__) for name in vars(each)
        ):
            for served in getattr(getattr(handler, name), _DECLARED, ()):
                if served.code in seen:
                    rule = f"answered by one method; {seen[served.code]} answers it"
                    raise ArgumentError("code", served.code, rule)
                seen[served.code] = f"{handler.__qualname__}.{name}"
                yield served


def needs_of(*handlers: type) -> dict[int, Rule]:
    """What each request needs that handlers declare, by its code, for an `AccessGate`.

    Raises:
        ArgumentError: two methods declare the same code.
    """
    return {served.code: served.needs for served in declared_by(*handlers)}


def processors_of(*handlers: object) -> dict[int, Processor]:
    """What answers each request that handlers declare, by its code, for a `RemotingServer`.

    Raises:
        ArgumentError: two methods declare the same code.
    """
    needs_of(*map(type, handlers))
    return {
        served.code: getattr(handler, served.method)
        for handler in handlers
        for served in declared_by(type(handler))
    }
