"""The messages are the published definition's, in a pool of their own."""

import pytest
from google.protobuf import descriptor_pool

from rmqcore.proxy import codes, messages

pytestmark = pytest.mark.logic


@pytest.mark.parametrize(
    "made",
    [
        codes.Code,
        messages.AddressScheme,
        messages.ClientType,
        messages.DigestType,
        messages.Encoding,
        messages.FilterType,
        messages.MessageType,
        messages.Permission,
        messages.QueryOffsetPolicy,
        messages.TransactionResolution,
        messages.TransactionSource,
    ],
)
def test_numbers_are_those_of_the_definition(made):
    published = messages.POOL.FindEnumTypeByName(f"{messages.PACKAGE}.{made.__name__}")
    assert {each.name: each.value for each in made} == {
        value.name: value.number for value in published.values
    }


def test_the_default_pool_stays_free_for_the_official_client():
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName(f"{messages.PACKAGE}.Message")


def test_every_rpc_of_the_definition_has_a_method():
    from rmqcore.proxy import LocalBroker, Service

    published = messages.POOL.FindServiceByName(messages.SERVICE)
    service = Service(LocalBroker(lambda: None, lambda: ""))
    assert service.methods.keys() == {
        f"/{messages.SERVICE}/{method.name}".encode() for method in published.methods
    }


def test_every_code_of_a_broker_becomes_a_code_of_the_definition():
    from rmqcore.remoting import RemotingCommand, ResponseCode

    for code in (*ResponseCode, 9999):
        assert codes.code_of(RemotingCommand(int(code))) in codes.Code
    assert codes.code_of(RemotingCommand(0)) is codes.Code.OK
    assert codes.code_of(RemotingCommand(17)) is codes.Code.TOPIC_NOT_FOUND
    assert codes.code_of(RemotingCommand(9999)) is codes.Code.INTERNAL_SERVER_ERROR
