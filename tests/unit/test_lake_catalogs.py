"""Iceberg tables in REST's and Glue's catalogs: each message is a row once, no secret is told."""

import pytest
from s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, s3_server

import rmqcore
from rmqcore.errors import ConfigError
from rmqcore.lake import Bodies, TableFollower
from rmqcore.lake.target import TableAccessError, TableChangedError

pytestmark = pytest.mark.process

boto3 = pytest.importorskip("boto3")
catalogs = pytest.importorskip("pyiceberg.catalog")
pytest.importorskip("moto")
pytest.importorskip("pyiceberg.catalog.sql")
from iceberg_rest import TOKEN, iceberg_rest  # noqa: E402 - behind the packages it is for


@pytest.fixture(scope="module")
def aws():
    """The URL of a server that is S3 and Glue."""
    with s3_server() as port:
        url = f"http://127.0.0.1:{port}"
        keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY}
        s3 = boto3.client("s3", region_name="us-east-1", endpoint_url=url, **keys)
        s3.create_bucket(Bucket=BUCKET)
        yield url


GLUE = pytest.param("glue", marks=pytest.mark.peers)


@pytest.fixture(params=["rest", GLUE])
def properties(request, tmp_path):
    """Of a catalog."""
    if request.param == "rest":
        (tmp_path / "warehouse").mkdir()
        with iceberg_rest(tmp_path) as rest:
            yield {"name": "c", "type": "rest", "uri": rest.url, "token": TOKEN}
        return
    url = request.getfixturevalue("aws")
    yield {
        "name": "c",
        "type": "glue",
        "warehouse": f"s3://{BUCKET}/lake",
        **{
            f"{part}.{name}": value
            for part in ("glue", "s3")
            for name, value in {
                "endpoint": url,
                "region": "us-east-1",
                "access-key-id": ACCESS_KEY,
                "secret-access-key": SECRET_KEY,
            }.items()
        },
    }


def put(tmp_path, *bodies):
    with rmqcore.open_store(tmp_path / "store", mapped_file_size_commit_log=1 << 16) as store:
        for body in bodies:
            store.put("T", body)


def follower(tmp_path, properties):
    return TableFollower(
        tmp_path / "store",
        "sales.orders",
        topic="T",
        table_format="iceberg",
        bodies=Bodies("text"),
        catalog=properties,
    )


def bodies_of(properties):
    others = {name: value for name, value in properties.items() if name != "name"}
    catalog = catalogs.load_catalog("c", **others)
    return catalog.load_table("sales.orders").scan().to_arrow()["body"].to_pylist()


def test_a_table_of_a_catalog_has_each_message_once(tmp_path, properties):
    for body in (b"a", b"\xff", b"b"):
        put(tmp_path, body)
        done = follower(tmp_path, properties).run_once()
        assert done.rows + done.refused == 1
    assert follower(tmp_path, properties).run_once().rows == 0
    assert sorted(bodies_of(properties)) == ["a", "b"]


@pytest.mark.parametrize("properties", ["rest"], indirect=True)
def test_a_commit_that_another_was_faster_than_is_refused_by_the_catalog(
    tmp_path, properties, monkeypatch
):
    monkeypatch.setattr("rmqcore.lake.iceberg_target.SMALL_COUNT", 2)
    put(tmp_path, b"a")
    follower(tmp_path, properties).run_once()
    put(tmp_path, b"b")
    one = follower(tmp_path, properties)
    assert one.run_once().compacted == 2
    one.expire(0)
    # another one is faster, between looking and committing
    put(tmp_path, b"c")
    target, two = one._tables.good, follower(tmp_path, properties)
    append = target.append

    def overtaken(*facts):
        assert two.run_once().rows == 1
        append(*facts)

    monkeypatch.setattr(target, "append", overtaken)
    with pytest.raises(TableChangedError):
        one.run_once()
    assert follower(tmp_path, properties).run_once().rows == 0
    assert sorted(bodies_of(properties)) == ["a", "b", "c"]


def test_a_commit_whose_answer_is_lost_is_not_done_again(tmp_path):
    (tmp_path / "warehouse").mkdir()
    with iceberg_rest(tmp_path) as rest:
        properties = {"name": "c", "type": "rest", "uri": rest.url, "token": TOKEN}
        for body in (b"a", b"b"):
            put(tmp_path, body)
            rest.unheard = 1
            with pytest.raises(TableChangedError):
                follower(tmp_path, properties).run_once()
            assert rest.unheard == 0
            follower(tmp_path, properties).run_once()
        assert sorted(bodies_of(properties)) == ["a", "b"]


def test_who_is_not_let_in_hears_it_without_the_token(tmp_path):
    (tmp_path / "warehouse").mkdir()
    wrong = "another-token-that-is-secret"
    with iceberg_rest(tmp_path) as rest:
        properties = {"name": "c", "type": "rest", "uri": rest.url, "token": wrong}
        with pytest.raises(ConfigError, match="NotAuthorized") as caught:
            follower(tmp_path, properties)
    assert wrong not in str(caught.value)


@pytest.mark.parametrize("properties", [GLUE], indirect=True)
def test_glue_that_refuses_is_told_without_a_secret(tmp_path, properties, monkeypatch):
    one = follower(tmp_path, properties)
    put(tmp_path, b"a")

    def refused(*_, **__):
        from botocore.exceptions import ClientError

        told = {"Error": {"Code": "AccessDeniedException", "Message": SECRET_KEY}}
        raise ClientError(told, "GetTable")

    monkeypatch.setattr(one._tables.good._catalog.glue, "get_table", refused)
    with pytest.raises(TableAccessError, match="AccessDenied") as caught:
        one.run_once()
    assert SECRET_KEY not in str(caught.value)
