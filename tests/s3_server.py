"""An S3 server in a process of its own, and a proxy in front of it that fails as it is told."""

import http.client
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from patience import TIMEOUT_S, give_up

BUCKET = "bucket"
ACCESS_KEY, SECRET_KEY = "AKIATESTTESTTEST", "a-secret-that-no-error-may-tell"


@contextmanager
def s3_server():
    """Start moto's server; gives its port."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    killer = threading.Timer(TIMEOUT_S, server.kill)
    killer.start()
    try:
        lines = iter(server.stderr.readline, "")
        found = next(filter(None, (re.search(r"127\.0\.0\.1:(\d+)", line) for line in lines)), None)
        if found is None:
            give_up("the S3 server")
        killer.cancel()
        drain = threading.Thread(target=server.stderr.read)
        drain.start()
        yield int(found[1])
    finally:
        killer.cancel()
        server.kill()
        server.wait()
        drain.join()
        server.stderr.close()


class Proxy:
    """Hands requests on, but for those that its faults take.

    Attributes:
        faults: (method, part of the path, how often, what): an HTTP status; "slow" gives no answer
            before the end; "cut" hands out half of the answer; "unheard" does what was asked and
            cuts the connection before the answer. A function is called first, and then it goes on.
        asked: (method, path) of every request.
        url: of the proxy.
    """

    def __init__(self, port):
        self.faults = []
        self.asked = []
        self._port = port
        self._end = threading.Event()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def handle_one(self):
                proxy.answer(self)

            do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_one

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def _fault(self, request):
        for fault in self.faults:
            if fault[0] == request.command and fault[1] in request.path and fault[2] > 0:
                fault[2] -= 1
                return fault[3]
        return None

    def answer(self, request):
        """Answer one request."""
        self.asked.append((request.command, request.path))
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        fault = self._fault(request)
        if callable(fault):
            fault()
        if fault == "slow":
            self._end.wait(TIMEOUT_S)
        if fault == "slow" or isinstance(fault, int):
            request.send_response(503 if fault == "slow" else fault)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        upstream = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_S)
        upstream.request(request.command, request.path, body, dict(request.headers))
        answer = upstream.getresponse()
        data = answer.read()
        upstream.close()
        if fault == "unheard":
            request.close_connection = True
            return
        request.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                request.send_header(name, value)
        size = len(data) if request.command != "HEAD" else answer.getheader("Content-Length", "0")
        request.send_header("Content-Length", str(size))
        request.end_headers()
        if fault == "cut":
            data = data[: len(data) // 2]
            request.close_connection = True
        request.wfile.write(data)

    def close(self):
        """Stop it."""
        self._end.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
