"""`rmqcore web` and `serve --web-port` print an address that lets in, and end when told."""

import http.client
import json
import signal
import subprocess
import sys
from urllib.parse import urlsplit

import pytest
from broker.serving import serving
from patience import TIMEOUT_S

from rmqcore import open_store

pytestmark = pytest.mark.process


def page_at(address):
    """What an address leads to, with the cookie that it gives."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_S)
    connection.request("GET", f"/?{parts.query}")
    answer = connection.getresponse()
    answer.read()
    cookie = answer.headers["set-cookie"].partition(";")[0]
    connection.request("GET", answer.headers["location"], headers={"Cookie": cookie})
    page = connection.getresponse().read().decode()
    connection.close()
    return page


def test_a_cold_store_is_shown_until_sigterm(store_path):
    command = [sys.executable, "-m", "rmqcore", "web", str(store_path), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        address = json.loads(process.stdout.readline())["web"]
        assert "messages, all groups" in page_at(address)
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
    finally:
        process.kill()
        process.communicate()
    with open_store(store_path) as store:
        assert store.max_queue_offset("Orders", 0) == 20


def test_a_served_store_has_pages_beside_it(tmp_path):
    with serving(tmp_path / "store", "--web-port", "0") as (process, facts):
        assert "serving" in page_at(facts["web"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
