"""`BrokerLink`: a blocking connection, over which many requests go before their answers come."""

from __future__ import annotations

import itertools
import socket
import ssl
from collections.abc import Iterable, Iterator
from typing import Final, Self

from rmqcore.remoting import (
    FrameDecoder,
    RemotingClosedError,
    RemotingCommand,
    RemotingConnectError,
    RemotingTimeoutError,
    encode_command,
    split_address,
)
from rmqcore.remoting.codec import ANSWER_LIMITS, INT32_MAX
from rmqcore.remoting.sockets import new_socket
from rmqcore.scan.cluster.access import Access

#: This many bytes are read from a socket at once.
_PIECE_SIZE: Final = 1 << 20
#: This many requests may wait for their answers; with more both ends might wait to send.
_OUTSTANDING_MAX: Final = 256


class BrokerLink:
    """A connection to one broker or name server; for one thread.

    Args:
        address: `host:port`.
        access: signature and TLS.

    Raises:
        RemotingConnectError: nobody listens there.
    """

    def __init__(self, address: str, access: Access) -> None:
        self.address = address
        self._timeout_ms = access.timeout_ms
        self._signer = access.signer()
        self._decoder = FrameDecoder(ANSWER_LIMITS)
        self._opaques = itertools.count(1)
        host, port = split_address(address)
        try:
            self._socket = _connected(host, port, access)
        except (OSError, ssl.SSLError) as error:
            raise RemotingConnectError(address, str(error)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def send(self, commands: Iterable[RemotingCommand]) -> None:
        """Send requests; each gets its opaque, and its signature.

        Raises:
            RemotingClosedError, RemotingTimeoutError: the peer is gone, or takes nothing.
        """
        out: list[bytes] = []
        code = 0
        for command in commands:
            code = command.code
            command.opaque, command.flag = next(self._opaques) & INT32_MAX, 0
            if self._signer is not None:
                self._signer.sign(command)
            out += map(bytes, encode_command(command)[0])
        try:
            self._socket.sendall(b"".join(out))
        except TimeoutError:
            raise RemotingTimeoutError(self.address, code, self._timeout_ms) from None
        except OSError as error:
            raise RemotingClosedError(self.address) from error

    def receive(self, code: int) -> RemotingCommand:
        """The next answer, whatever request it is to; what the peer asks is passed over.

        Args:
            code: of the requests that wait, for the error.

        Raises:
            RemotingClosedError: the connection was lost.
            RemotingTimeoutError: nothing came in time.
            FrameError: what came is no answer.
        """
        while True:
            answer = self._decoder.next()
            if answer is not None:
                if answer.is_response:
                    return answer
                continue
            try:
                data = self._socket.recv(_PIECE_SIZE)
            except TimeoutError:
                raise RemotingTimeoutError(self.address, code, self._timeout_ms) from None
            except OSError as error:
                raise RemotingClosedError(self.address) from error
            if not data:
                raise RemotingClosedError(self.address)
            self._decoder.feed(data)

    def ask_all(self, commands: Iterable[RemotingCommand]) -> Iterator[RemotingCommand]:
        """The answers to requests, in the order of the requests, whatever codes they have.

        Raises:
            RemotingError: as `send` and `receive`.
        """
        commands = iter(commands)
        while some := list(itertools.islice(commands, _OUTSTANDING_MAX)):
            self.send(some)
            answers: dict[int, RemotingCommand] = {}
            while len(answers) < len(some):
                answer = self.receive(some[0].code)
                answers[answer.opaque] = answer
            yield from (answers[command.opaque] for command in some)

    def ask(self, command: RemotingCommand) -> RemotingCommand:
        """The answer to one request, whatever code it has."""
        return next(self.ask_all((command,)))


def _connected(host: str, port: int, access: Access) -> socket.socket:
    """A socket that is connected to the first address of a host that takes it."""
    trust = access.trust()
    last: OSError | None = None
    for family, kind, _, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        made = new_socket(family, kind)
        try:
            made.settimeout(access.timeout_ms / 1000)
            made.connect(place)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return made if trust is None else trust.wrap_socket(made, server_hostname=host)
        except OSError as error:
            made.close()
            last = error
        except BaseException:
            made.close()
            raise
    raise last or OSError(f"{host} has no address")
