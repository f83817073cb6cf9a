"""As much of WebHDFS as reading takes, over a directory: the answers that Hadoop documents."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


def _status(path, name):
    kind = "DIRECTORY" if path.is_dir() else "FILE"
    size = 0 if path.is_dir() else path.stat().st_size
    return {"pathSuffix": name, "type": kind, "length": size}


@contextmanager
def webhdfs(root):
    """Serve a directory; gives the URL of its top."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            path = root / parts.path.removeprefix("/webhdfs/v1").strip("/")
            if not path.exists():
                error = {"exception": "FileNotFoundException", "message": "File does not exist"}
                return self._answer(404, json.dumps({"RemoteException": error}).encode())
            if query["op"] == "GETFILESTATUS":
                return self._answer(200, json.dumps({"FileStatus": _status(path, "")}).encode())
            if query["op"] == "LISTSTATUS":
                found = [_status(one, one.name) for one in sorted(path.iterdir())]
                listed = {"FileStatuses": {"FileStatus": found}}
                return self._answer(200, json.dumps(listed).encode())
            if "from" not in query:
                # the name node sends readers on to a data node
                return self._answer(307, b"", f"http://{self.headers['Host']}{self.path}&from=1")
            start = int(query.get("offset", 0))
            data = path.read_bytes()[start : start + int(query.get("length", 1 << 40))]
            return self._answer(200, data)

        def _answer(self, code, data, location=None):
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            if location:
                self.send_header("Location", location)
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"webhdfs://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
