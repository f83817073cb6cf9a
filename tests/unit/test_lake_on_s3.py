"""Tables on object storage and in catalogs of one's own; what is secret is written nowhere."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, s3_server

import rmqcore
from rmqcore.errors import ConfigError
from rmqcore.lake import Bodies, TableFollower
from rmqcore.lake.target import TableAccessError

pytestmark = pytest.mark.process

boto3 = pytest.importorskip("boto3")
deltalake = pytest.importorskip("deltalake")
delta_target = pytest.importorskip("rmqcore.lake.delta_target")
pa = pytest.importorskip("pyarrow")
catalogs = pytest.importorskip("pyiceberg.catalog")
pytest.importorskip("moto")
pytest.importorskip("pyiceberg.catalog.sql")

FORMATS = ("delta", "iceberg")


@pytest.fixture(scope="module")
def s3():
    """Storage options of a server, and a client of it."""
    with s3_server() as port:
        options = {
            "aws_access_key_id": ACCESS_KEY,
            "aws_secret_access_key": SECRET_KEY,
            "aws_region": "us-east-1",
            "aws_endpoint_url": f"http://127.0.0.1:{port}",
        }
        names = {name: options[name] for name in list(options)[:2]}
        place = {"region_name": "us-east-1", "endpoint_url": options["aws_endpoint_url"]}
        client = boto3.client("s3", **place, **names)
        client.create_bucket(Bucket=BUCKET)
        yield options, client


def follower(tmp_path, table_format, options, **more):
    place = f"s3://{BUCKET}/orders"
    if table_format == "iceberg":
        place = "sales.orders"
        uri = f"sqlite:///{tmp_path}/catalog.db"
        more["catalog"] = {"name": "mine", "type": "sql", "uri": uri}
        more["catalog"]["warehouse"] = f"s3://{BUCKET}/lake"
    return TableFollower(
        tmp_path / "store",
        place,
        topic="T",
        table_format=table_format,
        storage_options=options,
        **more,
    )


def rows_of(tmp_path, table_format, options):
    if table_format == "delta":
        found = {**options, "aws_allow_http": "true"}
        table = deltalake.DeltaTable(f"s3://{BUCKET}/orders", storage_options=found)
        return table.to_pyarrow_table()
    catalog = catalogs.load_catalog(
        "mine",
        type="sql",
        uri=f"sqlite:///{tmp_path}/catalog.db",
        **{
            "s3.endpoint": options["aws_endpoint_url"],
            "s3.access-key-id": ACCESS_KEY,
            "s3.secret-access-key": SECRET_KEY,
        },
    )
    assert {name for _, name in catalog.list_tables("sales")} == {"orders", "orders_dlq"}
    return catalog.load_table("sales.orders").scan().to_arrow()


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_table_on_s3_has_each_message_once_and_no_secret(tmp_path, s3, table_format):
    options, client = s3
    for body in (b"a", b"\xff"):
        with rmqcore.open_store(tmp_path / "store", mapped_file_size_commit_log=1 << 16) as store:
            store.put("T", body)
        one = follower(tmp_path, table_format, options, bodies=Bodies("text"))
        done = one.run_once()
        assert done.rows + done.refused == 1
    one.expire(0)
    assert one.run_once().rows == 0
    rows = rows_of(tmp_path, table_format, options)
    assert rows["body"].to_pylist() == ["a"]
    for key in [each["Key"] for each in client.list_objects_v2(Bucket=BUCKET)["Contents"]]:
        written = client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        assert SECRET_KEY.encode() not in written
        assert ACCESS_KEY.encode() not in written
    for path in tmp_path.glob("catalog.db*"):
        assert SECRET_KEY.encode() not in path.read_bytes()


@pytest.mark.parametrize("table_format", FORMATS)
def test_storage_that_is_not_there_is_told_without_a_secret(tmp_path, s3, table_format):
    options = {**s3[0], "aws_endpoint_url": "http://127.0.0.1:1"}
    if table_format == "delta":
        options |= {"retry_timeout": "1s", "max_retries": "0"}
    with rmqcore.open_store(tmp_path / "store", mapped_file_size_commit_log=1 << 16) as store:
        store.put("T", b"a")
    with pytest.raises(TableAccessError) as caught:
        follower(tmp_path, table_format, options).run_once()
    assert SECRET_KEY not in repr(caught.getrepr(style="long"))
    assert "orders" in str(caught.value)


@pytest.mark.parametrize(
    ("table", "settings", "what"),
    [
        ("s3://bucket/t", {}, "needs a catalog"),
        ("orders", {"catalog": {"type": "sql", "uri": "sqlite://"}}, r"namespace\.table"),
        ("a.b", {"catalog": {"name": "nobody-has-told-of-it"}}, "nobody-has-told-of-it"),
        ("s3://key:secret@bucket/t", {"table_format": "delta"}, "no credentials in a URL"),
        ("a.b", {"catalog": {"type": "sql"}, "table_format": "delta"}, "where its path says"),
    ],
)
def test_a_table_that_nobody_can_find_is_refused(tmp_path, table, settings, what):
    with pytest.raises(ConfigError, match=what):
        TableFollower(tmp_path, table, topic="T", **{"table_format": "iceberg", **settings})


def test_an_error_of_a_catalog_tells_no_password(tmp_path):
    uri = "postgresql+nothing://user:a-secret-of-mine@127.0.0.1:1/lake"
    catalog = {"type": "sql", "uri": uri, "warehouse": "s3://bucket/lake"}
    with pytest.raises(ConfigError) as caught:
        TableFollower(tmp_path, "a.b", topic="T", table_format="iceberg", catalog=catalog)
    assert "a-secret-of-mine" not in str(caught.value)


def test_no_thread_waits_while_storage_is_asked_for_a_table():
    class Nothing(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(404 if "list-type" not in self.path else 200)
            self.end_headers()
            self.wfile.write(b"<ListBucketResult></ListBucketResult>")

        def log_message(self, *_):
            pass

    # which answers only when other threads than the one that asks get on
    with ThreadingHTTPServer(("127.0.0.1", 0), Nothing) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            options = {
                "aws_access_key_id": ACCESS_KEY,
                "aws_secret_access_key": SECRET_KEY,
                "aws_region": "us-east-1",
                "aws_endpoint_url": f"http://127.0.0.1:{server.server_port}",
                "aws_request_timeout_s": "5",
                "max_retries": "0",
            }
            schema = pa.schema([("store_timestamp", pa.timestamp("us"))])
            target = delta_target.DeltaTarget(f"s3://{BUCKET}/none", "T", schema, options)
            assert target.offsets() == {}
        finally:
            server.shutdown()
            thread.join()
