"""RocketMQ's `tls.properties`: what it says is what is served, and what is wrong is named."""

import ssl
from pathlib import Path

import pytest

from rmqcore.errors import ConfigError
from rmqcore.remoting import TlsMode, load_tls

pytestmark = pytest.mark.logic

PEM = Path(__file__).parent / "localhost.pem"
CERTIFICATE = f"tls.server.certPath={PEM}\n"


@pytest.fixture
def load(tmp_path):
    """Read these lines as a file."""

    def write_and_load(text):
        path = tmp_path / "tls.properties"
        path.write_text(text, "utf-8")
        return load_tls(path)

    return write_and_load


def test_a_certificate_is_served_to_those_who_want_it(load):
    found = load(CERTIFICATE)
    assert found.mode is TlsMode.PERMISSIVE
    assert found.server.verify_mode is ssl.CERT_NONE
    assert found.client is None


def test_the_file_of_rocketmqs_own_pages_is_read(load):
    found = load(
        f"""tls.test.mode.enable=false
tls.server.need.client.auth=none
tls.server.keyPath={PEM}
tls.server.certPath={PEM}
tls.client.authServer=false
tls.client.trustCertPath={PEM}
"""
    )
    assert (found.mode, found.client) == (TlsMode.PERMISSIVE, None)
    assert found.server.verify_mode is ssl.CERT_NONE


def test_paths_begin_at_the_file(load, tmp_path):
    (tmp_path / "own.pem").write_bytes(PEM.read_bytes())
    found = load("# ours\ntls.server.mode = ENFORCING\ntls.server.certPath=own.pem\nother=1\n")
    assert found.mode is TlsMode.ENFORCING


@pytest.mark.parametrize(
    ("line", "mode"),
    [("", ssl.CERT_REQUIRED), ("tls.server.need.client.auth=optional", ssl.CERT_OPTIONAL)],
)
def test_callers_are_checked(load, line, mode):
    trust = f"tls.server.authClient=true\ntls.server.trustCertPath={PEM}\n"
    assert load(CERTIFICATE + trust + line).server.verify_mode is mode


def test_own_calls_are_encrypted_and_checked_where_that_is_said(load):
    off = "tls.server.mode=disabled\ntls.enable=true\n"
    found = load(off)
    assert (found.server, found.client.verify_mode) == (None, ssl.CERT_NONE)
    found = load(off + f"tls.client.authServer=true\ntls.client.trustCertPath={PEM}\n")
    assert found.client.verify_mode is ssl.CERT_REQUIRED
    assert not found.client.check_hostname
    assert load(off + f"tls.client.certPath={PEM}\n").client is not None


def test_whom_the_system_trusts_has_to_have_the_name_that_is_called(load):
    off = "tls.server.mode=disabled\ntls.enable=true\n"
    found = load(off + "tls.client.authServer=true\n")
    assert found.client.verify_mode is ssl.CERT_REQUIRED
    assert found.client.check_hostname
    assert not load(off + f"tls.client.trustCertPath={PEM}\n").client.check_hostname


@pytest.mark.engine
@pytest.mark.parametrize(
    ("text", "name", "rule"),
    [
        ("tls.server.certpath=x", "tls.server.certpath", "no such setting"),
        ("tls.server.mode=on", "tls.server.mode", "permissive"),
        ("", "tls.server.certPath", "a certificate"),
        (CERTIFICATE + "tls.test.mode.enable=true", "tls.test.mode.enable", "made up"),
        (CERTIFICATE + "tls.server.need.client.auth=require", "need.client.auth", "authClient"),
        (CERTIFICATE + "tls.server.need.client.auth=yes", "need.client.auth", "optional"),
        (f"tls.server.certPath={__file__}", "tls.server.certPath", "PEM"),
        (
            CERTIFICATE + f"tls.server.authClient=true\ntls.server.trustCertPath={__file__}",
            "tls.server.trustCertPath",
            "PEM",
        ),
    ],
)
def test_what_is_wrong_is_named(load, text, name, rule):
    with pytest.raises(ConfigError, match=rule) as refusal:
        load(text)
    assert name in refusal.value.field
    assert "tls.properties" in refusal.value.source


def test_a_file_that_is_not_there_is_named(load):
    with pytest.raises(FileNotFoundError, match=r"none\.pem"):
        load("tls.server.certPath=none.pem")


def test_a_file_in_latin_1_is_read_as_java_reads_it(tmp_path):
    path = tmp_path / "tls.properties"
    path.write_bytes(f"# für\n{CERTIFICATE}".encode("latin-1"))
    assert load_tls(path).mode is TlsMode.PERMISSIVE
