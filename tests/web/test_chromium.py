"""The pages in a real browser: nothing of a producer's runs, and nothing of ours is refused."""

import shutil
import subprocess

import pytest
from patience import TIMEOUT_S

from rmqcore import open_store
from rmqcore.web import ColdSource, Entry, WebServer, web_app

pytestmark = pytest.mark.peers

HOSTILE = b"<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
PAGES = ("/", "/topics", "/topic?name=T", "/groups", "/messages?by=time&topic=T", "/message?at=0")


@pytest.fixture
def dom(tmp_path):
    """The document that Chromium makes of a page, and what it says on the console."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs chromium on the path")
    with open_store(tmp_path / "store", mapped_file_size_commit_log=1 << 20) as store:
        store.put("T", HOSTILE, tags=HOSTILE.decode(), keys="k")
    with open_store(tmp_path / "store", mode="r") as store:
        entry = Entry()
        server = WebServer(web_app(ColdSource(store), entry), "127.0.0.1", 0)
        server.start()

        def load(path):
            url = f"http://127.0.0.1:{server.port}{path}"
            url += f"{'&' if '?' in path else '?'}token={entry.token}"
            command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"]
            command += ["--enable-logging=stderr", "--timeout=3000"]
            command += [f"--user-data-dir={tmp_path / 'profile'}", url]
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S
            )
            return done.stdout, done.stderr

        yield load
        server.stop()


def test_nothing_of_a_producer_runs_and_nothing_of_ours_is_refused(dom):
    for path in (*PAGES, "/store"):
        document, said = dom(path)
        assert "<h1" in document, said
        assert "<title>owned" not in document
        assert "Content Security Policy" not in said
        assert "CONSOLE" not in said


def test_the_script_of_the_tail_runs(dom):
    document, said = dom("/live?topic=T")
    assert 'id="pause" aria-pressed="false"' in document, said
    assert "Content Security Policy" not in said
