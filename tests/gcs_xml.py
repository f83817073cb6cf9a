"""What fake-gcs-server lacks of Google's XML API: a PUT with a condition, and ``start-after``.

``gcs_xml.py PORT`` hands on to the server at that port, and says its own. A PUT becomes the upload
of the JSON API with the same condition, which that server knows; of a list, objects go that are
not behind ``start-after``. It is a process of its own, since deltalake lets no other thread of a
process work while it asks for the history of a table.
"""

import http.client
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def handle_one(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        method, path = self.command, self.path
        if method == "PUT" and "?" not in path:
            bucket, _, name = path.removeprefix("/").partition("/")
            wanted = {"uploadType": "media", "name": unquote(name)}
            if (generation := self.headers.get("x-goog-if-generation-match")) is not None:
                wanted["ifGenerationMatch"] = generation
            path = f"/upload/storage/v1/b/{bucket}/o?{urlencode(wanted, quote_via=quote)}"
            method = "POST"
        server = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        server.request(method, path, body, headers)
        answer = server.getresponse()
        data = answer.read()
        server.close()
        if after := parse_qs(urlsplit(path).query).get("start-after"):
            each = rb"<Contents><Key>(.*?)</Key>.*?</Contents>"
            data = re.sub(each, lambda one: one[0] if one[1].decode() > after[0] else b"", data)
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        if answer.getheader("ETag") is None:
            self.send_header("ETag", '"none"')
        size = len(data) if method != "HEAD" else answer.getheader("Content-Length", "0")
        self.send_header("Content-Length", str(size))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_one


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        print(f"port {proxy.server_port}", flush=True)
        proxy.serve_forever()
