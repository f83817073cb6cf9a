"""`masters_only`: what a slave refuses: all that ends in a put, or that its master has to know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from rmqcore.remoting import (
    Connection,
    Processor,
    RemotingCommand,
    RequestRefusedError,
    ResponseCode,
)
from rmqcore.remoting.serves import declared_by

_DECLARED: Final = "rmq_masters_only"
_REMARK: Final = "this broker is a slave: it takes nothing that has to be stored; ask its master"

_Method = TypeVar("_Method", bound=Callable[..., Any])


def masters_only(code: ResponseCode) -> Callable[[_Method], _Method]:
    """Declare that a slave refuses the requests of a method.

    Args:
        code: what the refusal says.
    """

    def declare(method: _Method) -> _Method:
        setattr(method, _DECLARED, code)
        return method

    return declare


def refusals_of(*handlers: object) -> dict[int, Processor]:
    """What a slave answers each request with that handlers leave to masters, by its code."""
    return {
        served.code: _refusal(code)
        for handler in handlers
        for served in declared_by(type(handler))
        if (code := getattr(getattr(handler, served.method), _DECLARED, None)) is not None
    }


def _refusal(code: ResponseCode) -> Processor:
    def refuse(_: Connection, __: RemotingCommand) -> RemotingCommand:
        raise RequestRefusedError(code, _REMARK)

    return refuse
