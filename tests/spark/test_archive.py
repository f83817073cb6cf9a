"""Spark reads an archive on S3 as it reads a directory, and archive and store as one log."""

import json

import pytest
from s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, Proxy, s3_server

from rmqcore import open_store
from rmqcore.errors import ConfigError
from rmqcore.transfer.archive import Archiver

pytestmark = pytest.mark.process

pytest.importorskip("pyspark")
boto3 = pytest.importorskip("boto3")
COUNT = 3000


@pytest.fixture(scope="module")
def archived(tmp_path_factory):
    """(a store without its first files, URL of its archive, options that open it)."""
    path = tmp_path_factory.mktemp("archived") / "store"
    with open_store(path, mapped_file_size_commit_log=64 << 10) as store:
        for number in range(COUNT):
            unique = {"UNIQ_KEY": f"{number:032X}"}
            store.put(f"T{number % 3}", b"%d" % number, queue_id=number % 2, properties=unique)
    with s3_server() as port:
        proxy = Proxy(port)
        options = {
            "aws_access_key_id": ACCESS_KEY,
            "aws_secret_access_key": SECRET_KEY,
            "aws_region": "us-east-1",
            "aws_endpoint_url": proxy.url,
        }
        client = boto3.client(
            "s3",
            endpoint_url=proxy.url,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1",
        )
        client.create_bucket(Bucket=BUCKET)
        client.close()
        url = f"s3://{BUCKET}/store"
        Archiver(path, url, storage_options=options).run_once()
        for file in sorted((path / "commitlog").iterdir())[:3]:
            file.unlink()
        yield path, url, {"storageOptions": json.dumps(options)}
        proxy.close()


def numbers_of(frame):
    return sorted(int(row[0], 16) for row in frame.select("unique_key").collect())


def test_a_batch_reads_the_archive_and_both_as_one_log(rmq, archived):
    path, url, options = archived
    every = list(range(COUNT))
    alone = numbers_of(rmq(url, **options))
    assert alone == every[: len(alone)]
    assert COUNT // 2 < len(alone) < COUNT
    assert numbers_of(rmq(path)) == every[-len(numbers_of(rmq(path))) :] != every
    assert numbers_of(rmq(path, archive=url, **options)) == every
    one = rmq(path, archive=url, topics="T1", queueIds="0", **options)
    assert numbers_of(one) == [number for number in every if number % 6 == 4]
    offsets = {"startingOffsets": '{"T1": {"0": 5}}', "endingOffsets": '{"T1": {"0": 9}}'}
    few = rmq(path, archive=url, topics="T1", queueIds="0", **offsets, **options)
    assert numbers_of(few) == [34, 40, 46, 52]


def test_jobs_read_an_archive(spark, tmp_path):
    from rmqcore.spark.analysis import compact, trace, traffic

    with open_store(tmp_path / "store", mapped_file_size_commit_log=64 << 10) as store:
        for number in range(900):
            key = f"k{number % 100}"
            receipt = store.put("Orders", b"%0100d" % number, queue_id=0, keys=key)
    Archiver(tmp_path / "store", str(tmp_path / "archive")).run_once()
    archive = str(tmp_path / "archive")
    found = [row.queue_offset for row in trace(spark, archive, key="k7").collect()]
    assert found == sorted(found)
    assert set(found) <= set(range(7, 900, 100))
    assert len(found) > 5
    assert compact(spark, archive).count() == 100
    assert traffic(spark, archive).count()
    with pytest.raises(ConfigError, match="no index"):
        trace(spark, archive, key="k7", index=True)
    assert trace(spark, archive, message_id=receipt.message_id).count() == 0


@pytest.mark.peers
def test_a_stream_goes_from_the_archive_into_the_store(spark, archived, tmp_path):
    path, url, options = archived
    reader = spark.readStream.format("rmq").options(
        archive=url, startingOffsets="earliest", maxOffsetsPerTrigger="500", **options
    )
    query = (
        reader.load(str(path))
        .select("unique_key")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    query.awaitTermination()
    assert len([batch for batch in query.recentProgress if batch.numInputRows]) >= 6
    assert numbers_of(spark.read.parquet(str(tmp_path / "out"))) == list(range(COUNT))
    for file in (tmp_path / "checkpoint").rglob("*"):
        if file.is_file():
            assert SECRET_KEY.encode() not in file.read_bytes()


def test_what_is_wrong_is_told_without_a_secret(refused, archived):
    path, url, options = archived
    assert "no archive is here" in refused(f"{url}/none", **options)
    text = refused(url, storageOptions=json.dumps({"aws_secret": SECRET_KEY}))
    assert "aws_endpoint_url" in text
    assert SECRET_KEY not in text
    text = refused(url, storageOptions=f'{{"aws_secret_access_key": {SECRET_KEY}')
    assert "storageOptions" in text
    assert SECRET_KEY not in text
    assert "in a directory" in refused(url, archive=url, **options)
    assert "KEY:SECRET" not in refused(path, archive="s3://KEY:SECRET@bucket", **options)
