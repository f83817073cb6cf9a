"""The file of accounts."""

import json

import pytest

from rmqcore.errors import ConfigError
from rmqcore.remoting import Permission, admin_of, load_accounts

pytestmark = pytest.mark.logic

ONE = {"accessKey": "orders1", "secretKey": "secret-1"}


def load(tmp_path, *entries, **more):
    path = tmp_path / "acl.json"
    path.write_text(json.dumps({"accounts": list(entries), **more}), "utf-8")
    return load_accounts(path)


def test_what_an_account_may_do_is_read(tmp_path):
    accounts = load(
        tmp_path,
        {
            **ONE,
            "defaultTopicPerm": "SUB",
            "topicPerms": ["A=PUB|SUB", "B = DENY"],
            "groupPerms": ["G=SUB"],
        },
        {"accessKey": "operator", "secretKey": "secret-2", "admin": True},
        globalWhiteRemoteAddresses=[],
    )
    account = accounts["orders1"]
    assert account.topics == {"A": Permission.PUB | Permission.SUB, "B": Permission.DENY}
    assert account.groups == {"G": Permission.SUB}
    assert (account.default_topic, account.default_group) == (Permission.SUB, Permission.DENY)
    assert admin_of(accounts) is accounts["operator"]
    assert not account.admin
    assert "secret-1" not in repr(account)


@pytest.mark.parametrize(
    ("addresses", "inside", "outside"),
    [
        ("10.1.*.*", "10.1.2.3:5", "10.2.2.3:5"),
        ("10.1.2.3, 192.168.0.0/16", "192.168.7.7:5", "10.1.2.4:5"),
        ("::1", "[::1]:5", "[::2]:5"),
        ("10.1.*.*", "[::ffff:10.1.2.3]:5", "[::ffff:10.2.2.3]:5"),
        ("::ffff:10.1.0.0/112", "[::ffff:10.1.2.3]:5", "10.1.2.3:5"),
    ],
)
def test_requests_come_from_the_addresses_of_their_account_only(
    tmp_path, addresses, inside, outside
):
    account = load(tmp_path, {**ONE, "whiteRemoteAddress": addresses})["orders1"]
    assert account.may_come_from(inside)
    assert not account.may_come_from(outside)
    assert not account.may_come_from("")


@pytest.mark.parametrize(
    "entry",
    [
        {"accessKey": "orders1"},
        {**ONE, "secretKey": "short"},
        {**ONE, "accessKey": 12345678},
        {**ONE, "admin": "true"},
        {**ONE, "defaultTopicPerm": "ALL"},
        {**ONE, "topicPerms": ["A"]},
        {**ONE, "topicPerms": "A=PUB"},
        {**ONE, "groupPerms": ["=SUB"]},
        {**ONE, "topicPerms": ["A=PUB|SUB", "A=DENY"]},
        {**ONE, "groupPerms": ["G=DENY", " G =SUB"]},
        {**ONE, "whiteRemoteAddress": "10.*.1.*"},
        {**ONE, "whiteRemoteAddress": "10.1.2.3/8"},
        {**ONE, "whiteRemoteAdress": "10.1.2.3"},
        "orders1",
    ],
)
def test_an_entry_that_is_not_understood_is_refused(tmp_path, entry):
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, entry)
    assert "short" not in str(refused.value)


def test_a_file_that_is_not_understood_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="occurs once"):
        load(tmp_path, ONE, ONE)
    with pytest.raises(ConfigError, match="at least one"):
        load(tmp_path)
    with pytest.raises(ConfigError, match="without a signature"):
        load(tmp_path, ONE, globalWhiteRemoteAddresses=["10.*.*.*"])
    (tmp_path / "acl.yml").write_text("accounts:\n- accessKey: a\n", "utf-8")
    with pytest.raises(ConfigError, match="JSON"):
        load_accounts(tmp_path / "acl.yml")


@pytest.mark.parametrize(
    "text",
    [
        '{"accounts":[{"accessKey":"orders1","secretKey":"hidden-1"}],"accounts":[%s]}',
        '{"accounts":[{"accessKey":"orders2","secretKey":"hidden-2","admin":false,"admin":true}]}',
    ],
)
def test_no_name_hides_another_of_its_like(tmp_path, text):
    (tmp_path / "acl.json").write_text(text.replace("%s", json.dumps(ONE)), "utf-8")
    with pytest.raises(ConfigError, match="occurs once") as refused:
        load_accounts(tmp_path / "acl.json")
    assert "hidden" not in str(refused.value)
