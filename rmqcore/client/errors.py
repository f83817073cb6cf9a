"""The errors of a client; those of its connections are remoting's."""

from __future__ import annotations

from rmqcore.remoting.errors import RemotingError


class NoRouteError(RemotingError):
    """No name server knows a broker that serves what was asked for.

    Attributes:
        topic: the topic, or the broker's name.
        reason: what is missing, and what to do.
    """

    def __init__(self, topic: str, reason: str) -> None:
        self.topic = topic
        self.reason = reason
        super().__init__(f"{topic}: {reason}")


class GroupNotFoundError(RemotingError):
    """No broker knows a consumer group.

    Attributes:
        group: its name.
        nearest: a known group whose name is like it; empty when none is.
    """

    def __init__(self, group: str, nearest: str = "") -> None:
        self.group = group
        self.nearest = nearest
        hint = f"; did you mean {nearest}?" if nearest else ""
        super().__init__(f"no broker knows the consumer group {group}{hint}")


class ClientClosedError(RemotingError):
    """A client was used before it had been opened, or after it had been closed."""

    def __init__(self, client: str) -> None:
        super().__init__(f"the {client} is not open; use it inside `async with`")


class ClientForkedError(RemotingError):
    """A client was used in a child process; its connections are the parent's. Open one there.

    Attributes:
        client: producer, consumer or admin.
        opened_by: the process that opened it.
    """

    def __init__(self, client: str, opened_by: int) -> None:
        self.client = client
        self.opened_by = opened_by
        super().__init__(
            f"the {client} was opened by process {opened_by}; open another one in this process"
        )


class ClientMisusedError(RemotingError):
    """A call from where it could never be answered.

    Attributes:
        client: producer, consumer or admin.
        reason: from where, and what to do.
    """

    def __init__(self, client: str, reason: str) -> None:
        self.client = client
        self.reason = reason
        super().__init__(f"{client}: {reason}")


class BadAnswerError(RemotingError, ValueError):
    """A broker or name server answered with what is no answer to the request.

    Attributes:
        address: who has answered, `host:port`.
        reason: what was found.
    """

    def __init__(self, address: str, reason: str) -> None:
        self.address = address
        self.reason = reason
        super().__init__(f"{address}: {reason}")
