"""What an administrator names, looked up: a topic, a group, a broker by its name or address."""

from __future__ import annotations

import difflib
import os
from contextlib import suppress
from itertools import pairwise

import typer

from rmqcore.cli.complete import starting, words
from rmqcore.cli.near import near
from rmqcore.cli.remote import DEFAULT_NAME_SERVER, access
from rmqcore.client import GroupNotFoundError, NoRouteError
from rmqcore.client.blocking import Admin
from rmqcore.errors import RmqCoreError
from rmqcore.remoting import split_address
from rmqcore.remoting.codes import MASTER_ID

#: Who presses a key waits no longer than this.
_TYPED_MS = 500


def expect_topic(admin: Admin, topic: str) -> None:
    """Refuse a topic that no name server knows.

    Args:
        admin: asks the name servers.
        topic: as it was typed.

    Raises:
        NoRouteError: it is one; names the nearest.
    """
    names = admin.topics()
    if topic not in names:
        raise NoRouteError(topic, f"no broker has this topic{near(topic, names)}")


def expect_group(admin: Admin, group: str) -> None:
    """Refuse a group that no broker knows.

    Args:
        admin: asks the brokers.
        group: as it was typed.

    Raises:
        GroupNotFoundError: it is one; names the nearest.
    """
    known = admin.groups()
    if group not in known:
        raise GroupNotFoundError(group, *difflib.get_close_matches(group, known, n=1))


def broker_name(admin: Admin, named: str) -> str:
    """The name of a registered broker that was given by its name or by an address.

    Args:
        admin: asks the name servers.
        named: name of a broker, or ``host:port`` of its master or a slave.

    Raises:
        NoRouteError: there is none; names the nearest.
    """
    entries = admin.clusters()
    for entry in entries:
        if named == entry.broker_name or named in entry.addresses.values():
            return entry.broker_name
    names = [entry.broker_name for entry in entries]
    raise NoRouteError(named, f"no broker is registered so{near(named, names)}")


def broker_address(admin: Admin, named: str) -> str:
    """The address of a broker that was given by it, or by the name of its master.

    An address is taken as it is: a broker that no name server knows can be asked, too.

    Args:
        admin: asks the name servers, when it is a name.
        named: ``host:port``, or name of a broker.

    Raises:
        typer.BadParameter: an address whose port is none.
        NoRouteError: no broker has the name; names the nearest.
    """
    if ":" in named:
        _check_address(named, "--broker")
        return named
    entries = {entry.broker_name: entry.addresses for entry in admin.clusters()}
    address = entries.get(named, {}).get(MASTER_ID)
    if address is None:
        raise NoRouteError(named, f"no master is registered so{near(named, entries)}")
    return address


def remote_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """For the shell: the topics of the name servers of the command line, if they answer soon.

    Args:
        ctx: of the command line that is being typed.
        incomplete: what was typed so far.
    """
    with suppress(RmqCoreError, OSError), _asked(ctx) as admin:
        return starting(admin.topics(), incomplete)
    return []


def remote_groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """For the shell: the groups of the brokers that these know, likewise.

    Args:
        ctx: of the command line that is being typed.
        incomplete: what was typed so far.
    """
    with suppress(RmqCoreError, OSError), _asked(ctx) as admin:
        return starting(admin.groups(), incomplete)
    return []


def _asked(ctx: typer.Context) -> Admin:
    given = ctx.params
    allowed = access(given.get("access_key"), given.get("secret_key"), bool(given.get("tls")))
    typed = words()
    named = next((after for word, after in pairwise(typed) if word in {"-n", "--namesrv"}), None)
    told = given.get("namesrv") or named or os.environ.get("NAMESRV_ADDR")
    address = str(told or DEFAULT_NAME_SERVER)
    return Admin(address, timeout_ms=_TYPED_MS, acl=allowed.acl, tls=allowed.tls)


def _check_address(text: str, option: str) -> None:
    """Refuse what is not host:port.

    Args:
        text: as it was typed.
        option: name of the option that errors say.

    Raises:
        typer.BadParameter: it is not, or the port is above 65535.
    """
    try:
        split_address(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
