"""Signatures as RocketMQ's clients make them."""

import pytest

from rmqcore.remoting import AclSigner, RemotingCommand, signature_is_right
from rmqcore.remoting.acl import STRICT_FOR_MS, strict_signature_is_right
from rmqcore.world import World, wall_clock_ms

pytestmark = pytest.mark.logic

FIELDS = {"topic": "Tä", "b": "2", "Z": "1", "\uff5e": "3", "\U0001f600": "4"}


def signed(**changes):
    command = RemotingCommand(105, dict(FIELDS), b"body", **changes)
    AclSigner("user", "secret-ü", "tok").sign(command)
    return command


def test_the_signature_is_that_of_javas_client():
    # AclClientRPCHook of 5.5.0 and 4.9.7 gives the same for these fields
    assert signed().ext_fields == FIELDS | {
        "AccessKey": "user",
        "SecurityToken": "tok",
        "Signature": "VWIlK4bP8EaZ32me4byde8Sn0a8=",
    }


def test_signing_again_changes_nothing():
    command = signed()
    before = dict(command.ext_fields)
    AclSigner("user", "secret-ü", "tok").sign(command)
    assert command.ext_fields == before


def test_only_what_was_signed_with_the_secret_is_right():
    assert signature_is_right(signed(), "secret-ü")
    assert not signature_is_right(signed(), "secret-u")
    assert not signature_is_right(RemotingCommand(105, dict(FIELDS), b"body"), "secret-ü")
    for change in ({"b": "3"}, {"more": "1"}, {"Signature": "é"}, {"AccessKey": "other"}):
        command = signed()
        command.ext_fields |= change
        assert not signature_is_right(command, "secret-ü")
    command = signed()
    command.body = b"Body"
    assert not signature_is_right(command, "secret-ü")


def test_a_field_that_old_clients_add_after_signing_is_left_out_for_them_only():
    for version, right in ((399, True), (400, False)):
        command = signed(version=version)
        command.ext_fields["_UNIQUE_KEY_QUERY"] = "true"
        assert signature_is_right(command, "secret-ü") is right


def test_a_signer_does_not_show_its_secret():
    assert "secret" not in repr(AclSigner("user", "secret"))


def test_rocketmqs_signature_knows_neither_names_nor_borders_and_the_strict_one_does():
    def command(code, fields, body=b""):
        made = RemotingCommand(code, dict(fields), body)
        AclSigner("user", "secret", strict=True).sign(made)
        return made

    now_ms = wall_clock_ms()
    seen = command(30, {"queueId": "10", "topic": "Orders"}, b"body")
    assert signature_is_right(seen, "secret")
    assert strict_signature_is_right(seen, "secret", now_ms)
    own = {name: seen.ext_fields[name] for name in seen.ext_fields if name[0].isupper()}
    for code, fields, body in (
        (17, {"queueId": "10", "topic": "Orders"}, b"body"),
        (30, {"rQueueId": "10", "topic": "Orders"}, b"body"),
        (30, {"queueId": "1", "topic": "0Orders"}, b"body"),
        (30, {"queueId": "10", "topic": "Ordersb"}, b"ody"),
        (30, {"queueId": "10", "topic": "Orders", "more": ""}, b"body"),
    ):
        forged = RemotingCommand(code, {**own, **fields}, body)
        assert signature_is_right(forged, "secret")
        assert not strict_signature_is_right(forged, "secret", now_ms)


def test_a_strict_signature_is_good_for_a_while():
    signed_ms = 1_700_000_000_000
    command = RemotingCommand(105, {"a": "1"}, b"body")
    signer = AclSigner("user", "secret", strict=True, world=World(clock_ms=lambda: signed_ms))
    signer.sign(command)

    def is_right(after_ms):
        return strict_signature_is_right(command, "secret", signed_ms + after_ms)

    assert is_right(0)
    assert is_right(STRICT_FOR_MS)
    assert is_right(-STRICT_FOR_MS)
    assert not is_right(STRICT_FOR_MS + 1)
    assert not is_right(-STRICT_FOR_MS - 1)
    assert not strict_signature_is_right(command, "another", signed_ms)
    for stamp in ("", "x", "9" * 19, "-1", str(signed_ms + 1)):
        command.ext_fields["SignedMs"] = stamp
        assert not is_right(0)
