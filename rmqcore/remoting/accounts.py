"""Accounts: who may send requests, and what each may do; read from one file.

The file is JSON under the names of RocketMQ's `plain_acl.yml`, so it is that file as well; only
`strictSignature` is not of RocketMQ:

    {"accounts": [{"accessKey": "orders", "secretKey": "...", "whiteRemoteAddress": "10.0.0.0/8",
                   "admin": false, "defaultTopicPerm": "DENY", "defaultGroupPerm": "SUB",
                   "topicPerms": ["Orders=PUB|SUB"], "groupPerms": ["billing=SUB"]}]}
"""

from __future__ import annotations

import functools
import ipaddress
import json
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from pathlib import Path
from typing import Any, TypeAlias

from rmqcore.errors import ConfigError
from rmqcore.remoting.acl import AclSigner

#: Java refuses shorter keys.
_KEY_SIZE_MIN = 7
_ONCE = "a name that occurs once"

_Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class Permission(IntFlag):
    """What an account may do with a topic, or a group. Source: Permission."""

    DENY = 0
    PUB = 1
    SUB = 2


_PERMISSIONS = {
    "DENY": Permission.DENY,
    "PUB": Permission.PUB,
    "SUB": Permission.SUB,
    "PUB|SUB": Permission.PUB | Permission.SUB,
    "SUB|PUB": Permission.PUB | Permission.SUB,
}
_KNOWN = frozenset(
    {
        "accessKey",
        "secretKey",
        "whiteRemoteAddress",
        "admin",
        "defaultTopicPerm",
        "defaultGroupPerm",
        "topicPerms",
        "groupPerms",
        "strictSignature",
    }
)


@dataclass(frozen=True, slots=True)
class Account:
    """One user.

    Attributes:
        access_key: the name.
        secret_key: what its requests are signed with.
        admin: whether it may do everything.
        networks: where its requests may come from; empty is anywhere.
        default_topic, default_group: its permission for what is not named.
        topics, groups: its permissions by name.
        strict: whether its requests need the strict signature as well, see `AclSigner`.
    """

    access_key: str
    secret_key: str = field(repr=False)
    admin: bool = False
    networks: tuple[_Network, ...] = ()
    default_topic: Permission = Permission.DENY
    default_group: Permission = Permission.DENY
    topics: Mapping[str, Permission] = field(default_factory=dict)
    groups: Mapping[str, Permission] = field(default_factory=dict)
    strict: bool = False

    @property
    def signer(self) -> AclSigner:
        """Signs requests in this account's name."""
        return AclSigner(self.access_key, self.secret_key, strict=self.strict)

    @property
    def on_topics(self) -> Permission:
        """What it may do with one topic or another."""
        return functools.reduce(operator.or_, self.topics.values(), self.default_topic)

    @property
    def on_groups(self) -> Permission:
        """What it may do with one group or another."""
        return functools.reduce(operator.or_, self.groups.values(), self.default_group)

    def may_come_from(self, remote_address: str) -> bool:
        """Tell whether its requests may come from an address, `host:port`."""
        if not self.networks:
            return True
        host = remote_address.rpartition(":")[0].strip("[]")
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        # a port that takes both kinds tells an IPv4 address so
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        forms = (address, mapped) if mapped else (address,)
        return any(form in network for network in self.networks for form in forms)


def load_accounts(path: str | Path) -> dict[str, Account]:
    """Read a file of accounts.

    Returns:
        the accounts by their access key, in the order of the file.

    Raises:
        ConfigError: the file is not as above, names an account or anything else of it twice, or
            names no account.
        OSError: it cannot be read.
    """
    source = str(path)
    try:
        content = json.loads(Path(path).read_text("utf-8"), object_pairs_hook=_read_object)
    except ConfigError as error:
        raise ConfigError(error.field, error.value, error.rule, source) from None
    except (ValueError, RecursionError) as error:
        rule = 'JSON: {"accounts": [{"accessKey": ..., "secretKey": ...}]}'
        raise ConfigError("auth", source, rule) from error
    if not isinstance(content, dict):
        raise ConfigError("auth", source, 'a JSON object with a list "accounts"')
    for name, value in content.items():
        if name == "globalWhiteRemoteAddresses" and value:
            rule = "an empty list: nobody is served without a signature"
            raise ConfigError(name, value, rule, source)
        if name not in ("accounts", "globalWhiteRemoteAddresses"):
            raise ConfigError(name, value, 'no such name beside "accounts"', source)
    entries = content.get("accounts")
    if not isinstance(entries, list) or not entries:
        raise ConfigError("accounts", "", "a list with at least one account", source)
    accounts: dict[str, Account] = {}
    for number, entry in enumerate(entries, 1):
        account = _read_account(entry, f"{source}: account {number}")
        if account.access_key in accounts:
            raise ConfigError("accessKey", account.access_key, _ONCE, source)
        accounts[account.access_key] = account
    return accounts


def admin_of(accounts: Mapping[str, Account]) -> Account | None:
    """The first account that may do everything: a broker asks name servers in its name."""
    return next((account for account in accounts.values() if account.admin), None)


def _read_object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, of whose members none hides another of the same name."""
    found = dict[str, Any]()
    for name, value in members:
        if name in found:
            raise ConfigError(name, "", _ONCE)
        found[name] = value
    return found


def _read_account(entry: Any, source: str) -> Account:
    if not isinstance(entry, dict):
        raise ConfigError("accounts", type(entry).__name__, "a JSON object an account", source)
    for name in entry:
        if name not in _KNOWN:
            raise ConfigError(name, "", f"one of {', '.join(sorted(_KNOWN))}", source)
    return Account(
        _read_key(entry, "accessKey", source),
        _read_key(entry, "secretKey", source),
        _read_switch(entry, "admin", source),
        _read_networks(entry.get("whiteRemoteAddress"), source),
        _read_permission("defaultTopicPerm", entry.get("defaultTopicPerm", "DENY"), source),
        _read_permission("defaultGroupPerm", entry.get("defaultGroupPerm", "DENY"), source),
        _read_permissions(entry, "topicPerms", source),
        _read_permissions(entry, "groupPerms", source),
        _read_switch(entry, "strictSignature", source),
    )


def _read_switch(entry: Mapping[str, Any], name: str, source: str) -> bool:
    value = entry.get(name, False)
    if type(value) is not bool:
        raise ConfigError(name, value, "true or false", source)
    return value


def _read_key(entry: Mapping[str, Any], name: str, source: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str) or len(value) < _KEY_SIZE_MIN:
        rule = f"a text of at least {_KEY_SIZE_MIN} characters"
        raise ConfigError(name, "..." if name == "secretKey" else value, rule, source)
    return value


def _read_permission(name: str, value: Any, source: str) -> Permission:
    found = _PERMISSIONS.get(value.replace(" ", "")) if isinstance(value, str) else None
    if found is None:
        raise ConfigError(name, value, f"one of {', '.join(_PERMISSIONS)}", source)
    return found


def _read_permissions(entry: Mapping[str, Any], name: str, source: str) -> dict[str, Permission]:
    listed = entry.get(name) or []
    if not isinstance(listed, list):
        raise ConfigError(name, listed, "a list of NAME=PERMISSION", source)
    found: dict[str, Permission] = {}
    for item in listed:
        resource, equals, value = str(item).rpartition("=")
        if not equals or not resource.strip():
            raise ConfigError(name, item, "NAME=PERMISSION", source)
        if resource.strip() in found:
            raise ConfigError(name, item, _ONCE, source)
        found[resource.strip()] = _read_permission(name, value, source)
    return found


def _read_networks(value: Any, source: str) -> tuple[_Network, ...]:
    """Addresses and networks, separated by commas; `10.1.*.*` is `10.1.0.0/16`."""
    if value in (None, "", "*"):
        return ()
    rule = "addresses such as 10.1.2.3, 10.1.0.0/16 or 10.1.*.*, separated by commas"
    if not isinstance(value, str):
        raise ConfigError("whiteRemoteAddress", value, rule, source)
    networks: list[_Network] = []
    for part in value.split(","):
        text = part.strip()
        fixed, star, rest = text.partition("*")
        if star:
            octets = [each for each in fixed.split(".") if each]
            if rest.replace(".*", "") or text.count(".") != 3:
                raise ConfigError("whiteRemoteAddress", value, rule, source)
            text = f"{'.'.join(octets + ['0'] * (4 - len(octets)))}/{8 * len(octets)}"
        try:
            networks.append(ipaddress.ip_network(text))
        except ValueError as error:
            raise ConfigError("whiteRemoteAddress", value, rule, source) from error
    return tuple(networks)
