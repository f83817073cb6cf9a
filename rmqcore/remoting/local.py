"""A server's requests, asked for from within its own process: no socket, no frame.

What speaks another protocol in front of a broker asks by this, so that every request goes through
the same processors and permissions as one that came over the network.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping

from rmqcore.remoting.accounts import Account
from rmqcore.remoting.codes import JSON_HEADER, ResponseCode
from rmqcore.remoting.command import RemotingCommand, failure
from rmqcore.remoting.connection import Connection, Processor
from rmqcore.remoting.errors import RemotingClosedError
from rmqcore.remoting.failed import answer_to
from rmqcore.remoting.permissions import AccessGate, note_account

logger = logging.getLogger(__name__)

#: Takes what a server asks a client: its requests that get no answer.
Asked = Callable[[RemotingCommand], None]


class LocalConnection(Connection):
    """One client of a `LocalServer`, as processors see it.

    Args:
        remote_address: who asks, `host:port`.
        gone: tells whether nobody waits for an answer any more; None: somebody always does.
        asked: gets what the server asks of its own accord; None drops it.
        owner: the connection that all of a client's requests came over; None: this one.
    """

    def __init__(
        self,
        remote_address: str,
        gone: Callable[[], bool] | None = None,
        asked: Asked | None = None,
        owner: Hashable | None = None,
    ) -> None:
        # nothing of a socket's connection is needed: every method that uses it is replaced
        self.remote_address = remote_address
        self.local_address = ""
        self.attributes = {}
        self._closed = False
        self._is_gone = gone
        self._asked = asked
        self._owner = owner
        self._answers: dict[int, asyncio.Future[RemotingCommand]] = {}

    @property
    def closed(self) -> bool:
        """Tell whether nobody waits for answers any more."""
        return self._closed or (self._is_gone is not None and self._is_gone())

    @property
    def writable(self) -> bool:
        """Tell whether answers are taken."""
        return not self.closed

    @property
    def owner(self) -> Hashable:
        """See `Connection`."""
        return self if self._owner is None else self._owner

    def count_worked(self, size: int) -> None:
        """Nothing: the connection that it came over has counted it."""

    def fileno(self) -> int:
        """No descriptor: -1."""
        return -1

    def expect(self, request: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        """The answer that a processor gives later."""
        future = asyncio.get_running_loop().create_future()
        self._answers[id(request)] = future
        return future

    def expect_no_more(self, request: RemotingCommand) -> None:
        """Forget a request that the processor itself has answered, or failed with."""
        self._answers.pop(id(request), None)

    def answer(self, request: RemotingCommand, response: RemotingCommand) -> None:
        """Answer a request, once.

        Args:
            request: from this connection; one that was answered is logged, and stays as it is.
            response: as `RemotingServer` would send it.
        """
        future = self._answers.pop(id(request), None)
        if request.answered or future is None:
            logger.error("request %d was answered a second time", request.code)
            return
        request.answered = True
        if not future.done():
            future.set_result(response)

    async def answer_in_turn(
        self, request: RemotingCommand, responses: Iterable[RemotingCommand]
    ) -> None:
        """Only the first answer is taken: no request that is asked for here has several.

        Args:
            request: from this connection.
            responses: at least one.
        """
        for response in responses:
            self.answer(request, response)
            return

    async def invoke(
        self, command: RemotingCommand, timeout_ms: float = 3000, *, serialize_type: int = 0
    ) -> RemotingCommand:
        """Refuse, unlike `Connection.invoke`: no client in this process would have to answer.

        Arguments as those of `Connection.invoke`.

        Raises:
            RemotingClosedError: always.
        """
        raise RemotingClosedError(self.remote_address)

    async def invoke_oneway(
        self,
        command: RemotingCommand,
        timeout_ms: float = 3000,
        *,
        serialize_type: int = JSON_HEADER,
    ) -> None:
        """As `notify`.

        Args:
            command: what the server asks.
            timeout_ms: without effect: nothing is waited for.
            serialize_type: without effect: there is no frame.

        Raises:
            RemotingClosedError: the connection is closed.
        """
        self.notify(command, serialize_type=serialize_type)

    def notify(self, command: RemotingCommand, *, serialize_type: int = JSON_HEADER) -> None:
        """Hand over what the server asks.

        Args:
            command: what the server asks.
            serialize_type: without effect: there is no frame.

        Raises:
            RemotingClosedError: the connection is closed.
        """
        if self.closed:
            raise RemotingClosedError(self.remote_address)
        if self._asked is not None:
            self._asked(command)

    def close(self) -> None:
        """Let every answer be dropped."""
        self._closed = True

    def abort(self) -> None:
        """As `close`."""
        self._closed = True

    async def finish(self, timeout_s: float) -> None:
        """As `close`."""
        self._closed = True


class LocalServer:
    """Hands requests to processors, as a `RemotingServer` does with what its port receives.

    Args:
        processors: by request code.
        gate: knows what accounts may do; None where everybody is served.
    """

    def __init__(self, processors: Mapping[int, Processor], gate: AccessGate | None = None) -> None:
        self._processors = processors
        self._gate = gate

    def ask(
        self, connection: LocalConnection, request: RemotingCommand, account: Account | None = None
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Have a request handled.

        Args:
            connection: whose it is; one for each request that may wait.
            request: needs no signature.
            account: in whose name, already authenticated; None asks in the process's own, which
                may do everything.

        Returns:
            the answer, or what is awaited for it.
        """
        processor = self._processors.get(request.code)
        try:
            if account is not None and self._gate is not None:
                note_account(connection, account)
                refused = self._gate.refusal_of(account, request)
                if refused is not None:
                    return refused
            if processor is None:
                remark = f" request type {request.code} not supported"
                return failure(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
            later = connection.expect(request)
            result = processor(connection, request)
            if isinstance(result, RemotingCommand):
                connection.expect_no_more(request)
                return result
            if result is not None:
                return self._finish(connection, result, request, later)
        except Exception as error:  # noqa: BLE001 - logged and answered, whatever it is
            connection.expect_no_more(request)
            return answer_to(error, request, connection)
        return later

    @staticmethod
    async def _finish(
        connection: LocalConnection,
        result: Awaitable[RemotingCommand | None],
        request: RemotingCommand,
        later: asyncio.Future[RemotingCommand],
    ) -> RemotingCommand:
        try:
            answer = await result
        except Exception as error:  # noqa: BLE001 - logged and answered, whatever it is
            connection.expect_no_more(request)
            return answer_to(error, request, connection)
        if answer is None:
            return await later
        connection.expect_no_more(request)
        return answer
