"""The gate that refuses requests whose account has not got what they need, see `needs`.

A request code that no handler declares is refused, whoever sends it. There are no addresses from
which requests pass unsigned. A refusal says the same of an unknown account, a wrong signature and a
wrong address, and nothing of what there is on the server.

Source: PlainAccessValidator, PlainPermissionManager.
"""

from __future__ import annotations

from collections.abc import Mapping

from rmqcore.chance import token_hex
from rmqcore.remoting.accounts import Account
from rmqcore.remoting.acl import ACCESS_KEY, signature_is_right, strict_signature_is_right
from rmqcore.remoting.codes import ResponseCode
from rmqcore.remoting.command import RemotingCommand, failure
from rmqcore.remoting.connection import Connection
from rmqcore.remoting.needs import ADMIN, IsTopic, Rule, TopicAt, any_is, of_transaction
from rmqcore.world import REAL, World

_UNSIGNED = "no permission: the request needs the AccessKey and the Signature of an account"
_NOT_ALLOWED = "no permission: the request is for administrators"

#: where a connection keeps the account of the request that passed last
_ACCOUNT = "account"


class AccessGate:
    """Lets the requests of accounts pass that may send them; see `RemotingServer`.

    Args:
        accounts: by access key.
        needs: by request code, what it needs; any other is refused. See `serves.needs_of`.
        topic_at: tells the topic of a stored message; for requests that name an offset only.
        is_topic: tells whether there is a topic; for retry topics that name one.
        world: its clock; for strict signatures.
    """

    def __init__(
        self,
        accounts: Mapping[str, Account],
        needs: Mapping[int, Rule],
        topic_at: TopicAt | None = None,
        is_topic: IsTopic | None = None,
        *,
        world: World = REAL,
    ) -> None:
        self._accounts = accounts
        self._needs = needs
        self._clock_ms = world.clock_ms
        self._topic_at = topic_at or _nothing_at
        self._is_topic = is_topic or _none_is
        self._decoy = token_hex(16)

    def __call__(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        """Return the refusal of a request; None lets it pass, and notes whose it is."""
        account = self._accounts.get(request.ext_fields.get(ACCESS_KEY, ""))
        # an unknown account takes as long to be refused as a wrong signature
        right = signature_is_right(request, account.secret_key if account else self._decoy)
        if account is None or not right or not account.may_come_from(connection.remote_address):
            return _refusal(_UNSIGNED)
        secret = account.secret_key
        if account.strict and not strict_signature_is_right(request, secret, self._clock_ms()):
            return _refusal(_UNSIGNED)
        note_account(connection, account)
        return self.refusal_of(account, request)

    def refusal_of(self, account: Account, request: RemotingCommand) -> RemotingCommand | None:
        """Return the refusal of what an account that is known to ask may not; None lets it pass."""
        rule = self._needs.get(request.code)
        if rule is None:
            return _refusal(_NOT_ALLOWED)
        if account.admin:
            return None
        if rule is ADMIN:
            return _refusal(_NOT_ALLOWED)
        for need in rule(request, self._topic_at):
            if not need.is_met_by(account, self._is_topic):
                return _refusal(f"no permission: {need} is needed")
        return None


def note_account(connection: Connection, account: Account) -> None:
    """Note whose the requests of a connection are from now on.

    Args:
        connection: that has shown who it is.
        account: what it may do.
    """
    connection.attributes[_ACCOUNT] = account


def account_of(connection: Connection) -> Account | None:
    """Whose request a processor has been given; None where everybody is served."""
    account: Account | None = connection.attributes.get(_ACCOUNT)
    return account


def may_end_transaction(account: Account | None, group: str, topic: str) -> bool:
    """Tell whether an account may end a producer group's transactions, and be asked for them.

    Who is asked is shown the message.

    Args:
        account: None where everybody is served.
        group: the producers'.
        topic: where the message goes when it is committed.
    """
    if account is None or account.admin:
        return True
    if not group or not topic:
        return False
    return all(need.is_met_by(account, any_is) for need in of_transaction(group, topic))


def _refusal(remark: str) -> RemotingCommand:
    return failure(ResponseCode.NO_PERMISSION, remark)


def _nothing_at(_: int) -> str | None:
    return None


def _none_is(_: str) -> bool:
    return False
