"""A whole lake by one command: S3, a broker, its archive, a Delta and an Iceberg table.

Nothing has to run before; what has to be installed is
`pip install 'rmqcore[cli,grpc,s3,delta,iceberg]' duckdb 'moto[s3]' flask flask-cors`. With
`--stay` all goes on until Ctrl-C. What the programs say is in the files `*.log` of the directory.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import boto3
import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from sqlalchemy.exc import OperationalError

from rmqcore import Message
from rmqcore.client.blocking import Admin, Producer
from rmqcore.errors import StoreError
from rmqcore.scan.dataset import StoreDataset
from rmqcore.scan.tables import iceberg_properties

COUNT = 6000
ARCHIVE = "s3://lake/orders"


def start(ends: ExitStack, log: Path, *words: str) -> None:
    """Start a program that is ended with all the others; what it says goes to a file."""
    with log.open("wb") as stream:
        command = [sys.executable, "-m", *words]
        program = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT)
    ends.callback(program.wait)
    ends.callback(program.terminate)


def said(log: Path, pattern: str) -> str:
    """What a program has said, when it has."""
    for _ in range(600):
        if found := re.search(pattern, log.read_text()):
            return found[1]
        time.sleep(0.1)
    return sys.exit(f"{log}: nothing like {pattern} after a minute")


def start_s3(ends: ExitStack, home: Path) -> None:
    """Start an S3 with a bucket; the environment says where it is, as to AWS's own tools."""
    start(ends, home / "s3.log", "moto.server", "-H", "127.0.0.1", "-p", "0")
    os.environ |= {
        "AWS_ENDPOINT_URL": said(home / "s3.log", r"(http://127\.0\.0\.1:\d+)"),
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
    }
    client = boto3.client("s3")
    client.create_bucket(Bucket="lake")
    client.close()


def send(address: str) -> None:
    """Send orders, to four queues."""
    orders = [
        Message("Orders", json.dumps({"order": number, "euro": number % 90}).encode())
        for number in range(COUNT)
    ]
    with Admin(address) as admin, Producer(address) as producer:
        admin.create_topic("Orders", queues=4)
        for first in range(0, COUNT, 100):
            producer.send_batch("Orders", orders[first : first + 100])


def delta_rows(place: Path) -> pa.Table:
    """Rows of the Delta table."""
    return DeltaTable(str(place)).to_pyarrow_table()


def iceberg_rows(place: Path) -> pa.Table:
    """Rows of the Iceberg table."""
    catalog = SqlCatalog("rmqcore", **iceberg_properties(place))
    try:
        return catalog.load_table("rmq.Orders").scan().to_arrow()
    finally:
        catalog.close()


def archived() -> pa.Table:
    """What the archive has of the topic."""
    dataset = StoreDataset(ARCHIVE)
    return dataset.to_table(columns=["queue_offset"], filter=pc.field("topic") == "Orders")


def awaited(look: Callable[[], pa.Table], least: int) -> pa.Table:
    """The rows that a look finds, when there are so many."""
    for _ in range(600):
        try:
            if len(rows := look()) >= least:
                return rows
        except (StoreError, TableNotFoundError, NoSuchTableError, OperationalError):
            pass  # not begun yet
        time.sleep(0.2)
    return sys.exit(f"{look}: not there after two minutes")


def main() -> None:
    """Start all, wait until each has what was sent, and end all."""
    stays = "--stay" in sys.argv
    places = [word for word in sys.argv[1:] if word != "--stay"]
    home = Path(places[0] if places else tempfile.mkdtemp())
    home.mkdir(parents=True, exist_ok=True)
    (home / "order.json").write_text(json.dumps({"order": "long!", "euro": "int"}))
    with ExitStack() as ends:
        start_s3(ends, home)
        ports = ["--namesrv-port", "0", "--port", "0", "--grpc-port", "0"]
        small = ["-c", f"mappedFileSizeCommitLog={1 << 20}"]
        start(ends, home / "broker.log", "rmqcore", "serve", str(home / "store"), *ports, *small)
        address = said(home / "broker.log", r"namesrv ([\d.]+:\d+)")
        send(address)
        archive = ["archive", str(home / "store"), ARCHIVE, "--follow"]
        start(ends, home / "archive.log", "rmqcore", *archive)
        columns = ["--every", "1s", "--body", "json", "--schema", str(home / "order.json")]
        for kind in ("delta", "iceberg"):
            words = [f"namesrv://{address}/Orders", str(home / kind), "--format", kind, *columns]
            start(ends, home / f"{kind}.log", "rmqcore", "table", *words)
        for kind, look in (("delta", delta_rows), ("iceberg", iceberg_rows)):
            orders = awaited(partial(look, home / kind), COUNT)
            asked = duckdb.sql("SELECT count(*), sum(euro) FROM orders")
            print(f"{kind}: {len(orders)} orders, as DuckDB has them {asked.fetchall()}")
        print("the archive has the first of them:", len(awaited(archived, 1)) > 0)
        print(f"broker {address}, S3 {os.environ['AWS_ENDPOINT_URL']}, tables in {home}")
        while stays:
            time.sleep(60)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("ended")
