"""Header fields are read by name, checked, and refused with words."""

import pytest

from rmqcore.remoting import RemotingCommand, RequestRefusedError, ResponseCode

pytestmark = pytest.mark.logic

COMMAND = RemotingCommand(
    10, {"t": "T", "n": "-7", "yes": "True", "no": "1", "long": str(2**63), "ä": "\u0663"}
)


def test_fields_have_their_types():
    assert COMMAND.text("t") == "T"
    assert COMMAND.number("n") == -7
    assert COMMAND.boolean("yes")
    assert not COMMAND.boolean("no")


def test_a_default_stands_for_a_field_that_is_missing():
    assert COMMAND.text("x", "d") == "d"
    assert COMMAND.number("x", 3) == 3
    assert COMMAND.boolean("x", True)
    assert not COMMAND.boolean("x")


@pytest.mark.parametrize("read", [COMMAND.text, COMMAND.number])
def test_a_missing_field_is_refused_by_name(read):
    with pytest.raises(RequestRefusedError, match="topicName") as refused:
        read("topicName")
    assert refused.value.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("name", ["t", "long", "ä"])
def test_what_is_no_number_of_64_bits_is_refused(name):
    with pytest.raises(RequestRefusedError, match=name):
        COMMAND.number(name, 5)


@pytest.mark.parametrize("text", ["", "-", "--1", "1_0", " 1", "1e3", "9" * 5000, "-" + "9" * 19])
def test_numbers_are_plain_decimals(text):
    with pytest.raises(RequestRefusedError):
        RemotingCommand(10, {"n": text}).number("n")


def test_the_ends_of_64_bits_are_numbers():
    for number in (2**63 - 1, -(2**63)):
        assert RemotingCommand(10, {"n": str(number)}).number("n") == number


def test_flags_tell_answers_and_oneway_requests():
    assert RemotingCommand(0, flag=1).is_response
    assert RemotingCommand(10, flag=2).is_oneway
    assert not RemotingCommand(10).is_oneway
    assert not RemotingCommand(10).is_response
