"""A work queue that survives the end of its process: what was not done comes again."""

import sys
import tempfile

import rmqcore


def work(path: str) -> int:
    """Put three tasks, do two of those that wait; how many still wait."""
    with rmqcore.open_store(path) as store:
        for number in range(3):
            store.put("Tasks", b"task %d" % number, keys=f"task-{number}")
        with rmqcore.Consumer(store, "workers", {"Tasks": "*"}) as consumer:
            for message in consumer.receive(max_messages=2):
                print(f"doing {message.body.decode()} (queue offset {message.queue_offset})")
                consumer.ack(message)
            return sum(lag.ready for lag in consumer.lag())


if __name__ == "__main__":
    directory = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    for run in range(2):
        print(f"run {run}: {work(directory)} tasks wait")
