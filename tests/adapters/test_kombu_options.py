"""kombu's options: one with which nothing could be received is refused when it connects, once."""

import pytest
from patience import TIMEOUT_S

from rmqcore.errors import ConfigError

pytestmark = pytest.mark.engine

kombu = pytest.importorskip("kombu", reason="needs kombu: pip install rmqcore[kombu]")
pytest.importorskip("rmqcore.adapters.kombu")


def connection(tmp_path, **options):
    return kombu.Connection(f"rmqcore://{tmp_path}/store", transport_options=options)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("visibility_timeout", None),
        ("visibility_timeout", "3600"),
        ("visibility_timeout", float("inf")),
        ("visibility_timeout", float("nan")),
        ("visibility_timeout", 0),
        ("max_reconsume_times", "3"),
        ("max_reconsume_times", 2.5),
        ("max_reconsume_times", -1),
    ],
)
def test_an_option_with_which_nothing_could_be_received_is_refused_once(tmp_path, option, value):
    refused = connection(tmp_path, **{option: value})
    with pytest.raises(ConfigError, match=f"{option}="):
        refused.ensure_connection(lambda *_: pytest.fail("tried again"), interval_start=0)


@pytest.mark.parametrize("times", [None, 0, 3])
def test_messages_are_received_with_any_limit_or_none(tmp_path, times):
    opened = connection(tmp_path, visibility_timeout=0.5, max_reconsume_times=times)
    with opened, opened.SimpleQueue("q") as queue:
        queue.put("x")
        assert queue.get(timeout=TIMEOUT_S).payload == "x"
