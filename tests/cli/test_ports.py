"""A port that is none is said to be that, by every option that takes a port or an address."""

import pytest

from rmqcore.cli.exit_codes import ExitCode

pytestmark = pytest.mark.engine

BAD = "127.0.0.1:70000"


@pytest.mark.parametrize("port", ["65536", "-1", "99999999999999999999"])
@pytest.mark.parametrize(
    "words",
    [
        ("serve", "{}", "--port"),
        ("serve", "{}", "--namesrv-port"),
        ("serve", "{}", "--grpc-port"),
        ("serve", "{}", "--metrics-port"),
        ("broker", "{}", "--port"),
        ("broker", "{}", "--metrics-port"),
        ("namesrv", "--port"),
        ("proxy", "--namesrv", "127.0.0.1:9876", "--port"),
        ("metaq", "serve", "server.ini", "--port"),
    ],
)
def test_a_port_above_65535_is_wrong_usage(rmqcore, tmp_path, words, port):
    store = tmp_path / "store"
    outcome = rmqcore(*(word.format(store) for word in words), port)
    assert outcome.exit_code == ExitCode.USAGE
    assert outcome.stderr.count("\n") == 1
    assert words[-1] in outcome.stderr
    assert not store.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("produce", "T", "x", "-n", BAD), "ports up to 65535"),
        (("consume", "T", "-n", f"127.0.0.1:9876;{BAD}"), "ports up to 65535"),
        (("admin", "topicList", "-n", BAD), "ports up to 65535"),
        (("admin", "brokerStatus", "-b", BAD), "ports end at 65535"),
        (("admin", "updateTopic", "-t", "T", "-b", BAD), "ports end at 65535"),
        (("ha", "status", "-n", BAD), "ports up to 65535"),
        (("ha", "resync", "{}", "--master", BAD), "ports end at 65535"),
        (("proxy", "--namesrv", BAD), "ports end at 65535"),
        (("serve", "{}", "-c", f"namesrvAddr={BAD}"), "ports end at 65535"),
        (("serve", "{}", "-c", "listenPort=70000"), "at most 65535"),
        (("broker", "{}", "-c", "haListenPort=70000"), "at most 65535"),
    ],
)
def test_an_address_with_such_a_port_is_wrong_usage(rmqcore, tmp_path, words, said):
    store = tmp_path / "store"
    outcome = rmqcore(*(word.format(store) for word in words))
    assert outcome.exit_code == ExitCode.USAGE
    assert outcome.stderr.count("\n") == 1
    assert said in outcome.stderr
    assert not store.exists()
