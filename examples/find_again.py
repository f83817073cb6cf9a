"""Where is message X: by key, by time, by id; and why a query came back empty."""

import sys
import tempfile

import rmqcore

if __name__ == "__main__":
    directory = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    with rmqcore.open_store(directory) as store:
        for number in range(100):
            receipt = store.put("Orders", b"order %d" % number, keys=("order", f"order-{number}"))

        (found,) = store.query_message("Orders", "order-42").messages
        print("by key:", found.body.decode(), "stored at", found.store_timestamp_ms)

        offset = store.queue_offset_by_time("Orders", 0, found.store_timestamp_ms)
        print("by time: the first message of that millisecond has queue offset", offset)

        last = store.message_by_id(receipt.message_id)
        print("by id:", last.body.decode() if last else "gone")

        page = store.query_message("Orders", "order", max_messages=10)
        print("the newest ten of many:", [message.queue_offset for message in page])
        older = store.query_message("Orders", "order", max_messages=10, page=page.next_page)
        print("the ten before:", [message.queue_offset for message in older])

        nothing = store.query_message("Orders", "order-4711", explain=True)
        print(nothing.explanation)
