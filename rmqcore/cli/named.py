"""What an administrator names, looked up: a topic, a group, a broker by its name or address."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import typer

from rmqcore.client import GroupNotFoundError, NoRouteError
from rmqcore.client.blocking import Admin
from rmqcore.remoting import split_address
from rmqcore.remoting.codes import MASTER_ID


def near(wrong: str, names: Iterable[str]) -> str:
    """The question that ends an error of an unknown name; empty when none is like it."""
    found = difflib.get_close_matches(wrong, names, n=1)
    return f"; did you mean {found[0]}?" if found else ""


def expect_topic(admin: Admin, topic: str) -> None:
    """Refuse a topic that no name server knows.

    Raises:
        NoRouteError: it is one; names the nearest.
    """
    names = admin.topics()
    if topic not in names:
        raise NoRouteError(topic, f"no broker has this topic{near(topic, names)}")


def expect_group(admin: Admin, group: str) -> None:
    """Refuse a group that no broker knows.

    Raises:
        GroupNotFoundError: it is one; names the nearest.
    """
    known = admin.groups()
    if group not in known:
        raise GroupNotFoundError(group, *difflib.get_close_matches(group, known, n=1))


def broker_name(admin: Admin, named: str) -> str:
    """The name of a registered broker that was given by its name or by an address.

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

    Raises:
        typer.BadParameter: an address whose port is none.
        NoRouteError: no broker has the name; names the nearest.
    """
    if ":" in named:
        check_address(named, "--broker")
        return named
    entries = {entry.broker_name: entry.addresses for entry in admin.clusters()}
    address = entries.get(named, {}).get(MASTER_ID)
    if address is None:
        raise NoRouteError(named, f"no master is registered so{near(named, entries)}")
    return address


def check_address(text: str, option: str) -> None:
    """Refuse what is not host:port.

    Raises:
        typer.BadParameter: it is not, or the port is above 65535.
    """
    try:
        split_address(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
