"""As much of Iceberg's REST catalog as a table that follows a topic takes, over a SQL catalog."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog.rest import CreateTableRequest, TableResponse
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
)
from pyiceberg.table import CommitTableRequest, StagedTable

TOKEN = "a-token-that-no-error-may-tell"


class Rest:
    """What the server has and was asked.

    Attributes:
        url: of the catalog.
        unheard: so many commits are done and answered with an error.
        asked: (method, path) of every request.
    """

    def __init__(self, place):
        self.unheard = 0
        self.asked = []
        self.lock = threading.Lock()
        self.catalog = SqlCatalog(
            "behind", uri=f"sqlite:///{place}/rest.db", warehouse=f"file://{place}/warehouse"
        )

    def answer(self, method, path, body):
        """The status and what JSON says of it."""
        parts = [unquote(part) for part in path.strip("/").split("/")][1:]
        try:
            return 200, self._done(method, parts, body)
        except NoSuchTableError as error:
            return 404, _error(error, "NoSuchTableException", 404)
        except NamespaceAlreadyExistsError as error:
            return 409, _error(error, "AlreadyExistsException", 409)
        except CommitFailedException as error:
            return 409, _error(error, "CommitFailedException", 409)
        except ConnectionError as error:
            return 500, _error(error, "InternalServerError", 500)

    def _done(self, method, parts, body):
        if parts == ["config"]:
            return {"defaults": {}, "overrides": {}}
        if parts == ["namespaces"]:
            asked = json.loads(body)
            self.catalog.create_namespace(tuple(asked["namespace"]))
            return {"namespace": asked["namespace"], "properties": {}}
        namespace, name = parts[1], parts[3] if len(parts) > 3 else None
        if method == "GET" and name:
            return _table(self.catalog.load_table((namespace, name)))
        if method == "POST" and name:
            return self._commit((namespace, name), CommitTableRequest.model_validate_json(body))
        if method == "POST":
            asked = CreateTableRequest.model_validate({"location": None, **json.loads(body)})
            staged = self.catalog._create_staged_table(
                (namespace, asked.name),
                asked.table_schema,
                asked.location,
                asked.partition_spec,
                asked.write_order,
                asked.properties,
            )
            return _table(staged, staged=True)
        raise AssertionError((method, parts))

    def _commit(self, name, asked):
        table = StagedTable(name, None, "", self.catalog._load_file_io(), self.catalog)
        done = self.catalog.commit_table(table, asked.requirements, asked.updates)
        if self.unheard:
            self.unheard -= 1
            raise ConnectionError("it is done, and nobody hears it")
        return json.loads(done.model_dump_json(by_alias=True))


def _error(error, kind, code):
    return {"error": {"message": str(error), "type": kind, "code": code}}


def _table(table, *, staged=False):
    place = None if staged else table.metadata_location
    told = TableResponse(**{"metadata-location": place}, metadata=table.metadata)
    return json.loads(told.model_dump_json(by_alias=True, exclude_none=True))


@contextmanager
def iceberg_rest(place):
    """Serve a catalog whose tables lie in a directory; gives a `Rest`."""
    rest = Rest(place)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def answer(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path = urlsplit(self.path).path
            rest.asked.append((self.command, path))
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                given = self.headers.get("Authorization")
                status, told = 401, _error(given, "NotAuthorizedException", 401)
            else:
                with rest.lock:
                    status, told = rest.answer(self.command, path, body)
            data = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = answer

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    rest.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield rest
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        rest.catalog.close()
