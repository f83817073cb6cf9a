#!/usr/bin/env python3
"""Compare what rmqcore reads from one store with what Apache RocketMQ read from it.

    python check.py STORE MANIFEST.json [BROKER.conf] [--read-only]

STORE is opened with mode="a" (recovers, and may write: give it a copy); with --read-only it is
opened with mode="r" and must stay byte-identical. Prints one line for each kind of difference, then
`N checks, M wrong`; the exit code is 1 when M > 0.
"""

import argparse
import hashlib
import ipaddress
import json
import sys
import zlib
from collections import Counter
from pathlib import Path

import rmqcore

MESSAGE_FIELDS = {
    "phy_offset": "phyOffset",
    "queue_offset": "queueOffset",
    "store_size": "size",
    "flag": "flag",
    "sys_flag": "sysFlag",
    "born_timestamp_ms": "bornTimestamp",
    "store_timestamp_ms": "storeTimestamp",
    "reconsume_times": "reconsumeTimes",
    "prepared_transaction_offset": "preparedTransactionOffset",
}
#: Bit of the system flag that says "the body is compressed": Java's manifest holds the plain one.
COMPRESSED_FLAG = 0x1
#: How many messages of a store are also looked up by physical offset and by id.
LOOKED_UP = 50


class Tally:
    """How many comparisons were made, how many of each kind failed, and the first of each."""

    def __init__(self):
        self.checks = 0
        self.wrong = Counter()
        self.first = {}

    def same(self, kind, got, want, where):
        """Compare one value; `kind` names what it is and `where` the message or queue."""
        self.checks += 1
        if got != want:
            self.wrong[kind] += 1
            self.first.setdefault(kind, f"{where}: got {got!r}, want {want!r}"[:300])

    def lines(self):
        """One line for each kind of difference."""
        return [
            f"wrong {kind}: {count} times; first: {self.first[kind]}"
            for kind, count in self.wrong.most_common()
        ]


def digest_tree(root):
    """Return path -> SHA-256 for every file below a directory, and None for a directory."""
    return {
        path.relative_to(root).as_posix(): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
        )
        for path in sorted(Path(root).rglob("*"))
    }


def host(text):
    """Turn Java's `address|port` into rmqcore's `address:port`, IPv6 in brackets."""
    address, _, port = text.partition("|")
    address = ipaddress.ip_address(address.split("%")[0])
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def check_message(tally, got, want, where):
    """Compare one message with its entry in the manifest, field by field."""
    for name, key in MESSAGE_FIELDS.items():
        tally.same(name, getattr(got, name), want[key], where)
    tally.same("body_crc", got.body_crc & 0x7FFFFFFF, want["bodyCRC"] & 0x7FFFFFFF, where)
    body = bytes(got.body)
    if not want["sysFlag"] & COMPRESSED_FLAG:
        tally.same("body", hashlib.sha256(body).hexdigest(), want["bodySha256"], where)
        tally.same("crc of body", zlib.crc32(body) & 0x7FFFFFFF, got.body_crc & 0x7FFFFFFF, where)
    record = hashlib.sha256(bytes(got.record)).hexdigest()
    tally.same("record", record, want["recordSha256"], where)
    tally.same("born_host", got.born_host, host(want["bornHost"]), where)
    tally.same("store_host", got.store_host, host(want["storeHost"]), where)
    tally.same("properties", dict(got.properties), want["properties"], where)
    tally.same("message_id", got.message_id.upper(), want["msgId"].upper(), where)


def read_queue(store, topic, queue_id, start, stop):
    """Read a whole queue in pulls of 32, as a consumer does."""
    messages = []
    while start < stop:
        result = store.get_message(topic, queue_id, start, max_messages=32)
        if not len(result.messages) or result.next_queue_offset <= start:
            break
        messages += result.messages
        start = result.next_queue_offset
    return messages


def check_queue(tally, store, want):
    """Compare one queue: its bounds, every message, and the offsets by time."""
    topic, queue_id, messages = want["topic"], want["queueId"], want["messages"]
    lowest, highest = want["minOffset"], want["maxOffset"]
    where = f"{topic[:40]}/{queue_id}"
    if messages:
        tally.same("queues()", (topic, queue_id) in set(store.queues()), True, where)
    tally.same("min_queue_offset", store.min_queue_offset(topic, queue_id), lowest, where)
    tally.same("max_queue_offset", store.max_queue_offset(topic, queue_id), highest, where)
    got = read_queue(store, topic, queue_id, lowest, highest)
    tally.same("messages in queue", len(got), len(messages), where)
    for mine, theirs in zip(got, messages, strict=False):
        check_message(tally, mine, theirs, f"{where}@{theirs['phyOffset']}")
    for time_ms, boundary, offset in want["offsetByTime"]:
        if boundary != "any":
            found = store.queue_offset_by_time(topic, queue_id, time_ms, boundary=boundary)
            tally.same(f"offset by time, {boundary}", found, offset, f"{where} t={time_ms}")


def true_hits(query, by_offset):
    """The offsets of a key query that hold the key; Java lists collisions and repeats too."""
    hits = set()
    for phy_offset in query["phyOffsets"]:
        message = by_offset.get(phy_offset)
        properties = message["properties"] if message else {}
        words = [*properties.get("KEYS", "").split(" "), properties.get("UNIQ_KEY")]
        if message is None or query["key"] in words:
            hits.add(phy_offset)
    return sorted(hits)


def check_look_ups(tally, store, want):
    """Compare key queries, and look messages up by physical offset and by id."""
    by_offset = {m["phyOffset"]: m for queue in want["queues"] for m in queue["messages"]}
    for query in want["keyQueries"]:
        result = store.query_message(query["topic"], query["key"], max_messages=64)
        found = sorted(message.phy_offset for message in result.messages)
        where = f"{query['topic'][:40]}#{query['key']}"
        tally.same("query_message", found, true_hits(query, by_offset), where)
    for phy_offset, entry in list(by_offset.items())[:LOOKED_UP]:
        message = store.message_at(phy_offset)
        tally.same("message_at", message and message.phy_offset, phy_offset, "store")
        message = store.message_by_id(entry["msgId"])
        tally.same("message_by_id", message and message.phy_offset, phy_offset, "store")


def check_store(store_dir, manifest, config=None, *, read_only=False):
    """Open a store and compare all of it with a manifest; return the Tally."""
    tally = Tally()
    before = digest_tree(store_dir) if read_only else None
    mode = "r" if read_only else "a"
    with rmqcore.open_store(store_dir, mode=mode, config=config) as store:
        tally.same("min_phy_offset", store.min_phy_offset, manifest["minPhyOffset"], "store")
        if not read_only and "torn" not in manifest:
            tally.same("max_phy_offset", store.max_phy_offset, manifest["maxPhyOffset"], "store")
        for queue in manifest["queues"]:
            check_queue(tally, store, queue)
        check_look_ups(tally, store, manifest)
    if read_only:
        tally.same("store untouched by mode='r'", digest_tree(store_dir), before, store_dir)
    return tally


def main():
    """Check one store and print the findings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("manifest", type=Path)
    parser.add_argument("conf", nargs="?")
    parser.add_argument("--read-only", action="store_true")
    args = parser.parse_args()
    manifest = json.loads(args.manifest.read_text("utf-8"))
    tally = check_store(args.store, manifest, args.conf, read_only=args.read_only)
    print(*tally.lines(), f"{tally.checks} checks, {tally.wrong.total()} wrong", sep="\n")
    return 1 if tally.wrong or not tally.checks else 0


if __name__ == "__main__":
    sys.exit(main())
