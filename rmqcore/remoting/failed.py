"""What a request is answered with whose processor has failed."""

from __future__ import annotations

import logging
from typing import Final

from rmqcore.errors import PutMessageError, StoreNotWritableError
from rmqcore.remoting.codes import ResponseCode
from rmqcore.remoting.command import RemotingCommand, failure
from rmqcore.remoting.errors import RequestRefusedError

logger = logging.getLogger(__name__)

_NOT_TAKEN: Final = "the store takes nothing now: its disk is full or refuses, or it shuts down"


def answer_to(error: Exception, request: RemotingCommand, asker: object) -> RemotingCommand:
    """Turn a processor's exception into an answer; only a refusal's own words go out.

    Args:
        error: what was raised; one that is no refusal is logged.
        request: that the processor got.
        asker: the connection, for the log.
    """
    if isinstance(error, RequestRefusedError) and not error.address:
        return failure(error.code, error.remark)
    if isinstance(error, (PutMessageError, StoreNotWritableError)):
        # whatever keeps the store from it is in the log already
        return failure(ResponseCode.SERVICE_NOT_AVAILABLE, _NOT_TAKEN)
    logger.error("%r: request %d failed", asker, request.code, exc_info=error)
    return internal_error(request)


def internal_error(request: RemotingCommand) -> RemotingCommand:
    """The answer where only the log says why.

    Args:
        request: that is answered.
    """
    remark = f"request {request.code} failed; the log of the server says why"
    return failure(ResponseCode.SYSTEM_ERROR, remark)
