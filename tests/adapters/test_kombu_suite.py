"""kombu's own integration suite, on our transport."""

import kombu
import pytest
from adapters import suites

import rmqcore.adapters.kombu

common = suites.module("kombu", "t/integration/common.py")
pytestmark = pytest.mark.peers


@pytest.fixture
def connection(tmp_path):
    opened = kombu.Connection(f"rmqcore://{tmp_path}/store")
    yield opened
    opened.close()


@pytest.fixture
def invalid_connection():
    return kombu.Connection("rmqcore:///proc/none/store")


def test_the_transport_is_ours(connection):
    assert connection.transport_cls == "rmqcore"
    assert isinstance(connection.transport, rmqcore.adapters.kombu.Transport)


class TestBasicFunctionality(common.BasicFunctionality):
    pass


class TestExchangeTypes(common.BaseExchangeTypes):
    pass


class TestTimeToLive(common.BaseTimeToLive):
    pass


class TestPriority(common.BasePriority):
    pass


class TestMessage(common.BaseMessage):
    pass
