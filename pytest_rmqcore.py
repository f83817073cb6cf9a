"""The pytest plugin `rmqcore`: `rmqcore.testing` says what its fixtures are.

Every test run of an environment with rmqcore loads it: it imports nothing of rmqcore until a test
asks for a broker.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from rmqcore.testing import RunningBroker

_NOT_OF_TOPICS: Final = re.compile(r"[^a-zA-Z0-9_-]+")
_NAME_MAX: Final = 60
_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def rocketmq_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker and its name server, the same for all tests of the session."""
    from rmqcore.testing import running_broker  # noqa: PLC0415 - a broker is heavy

    with running_broker(tmp_path_factory.mktemp("rocketmq") / "store") as broker:
        yield broker


@pytest.fixture
def rocketmq_topic(request: pytest.FixtureRequest) -> str:
    """A topic that no other test has, also to be the beginning of several topics' names."""
    name = _NOT_OF_TOPICS.sub("_", request.node.name)[:_NAME_MAX]
    return f"{name}-{next(_NUMBERS)}-{secrets.token_hex(3)}"
