"""A work queue that survives the end of its process: read on from where the last run stopped."""

import sys
import tempfile

import rmqcore

GROUP = "workers"


def work(path: str) -> int:
    """Put three tasks, take two of those that wait; how many still wait."""
    with rmqcore.open_store(path) as store:
        for number in range(3):
            store.put("Tasks", b"task %d" % number, keys=f"task-{number}")
        start = store.consumer_offsets.get("Tasks", GROUP, 0) or 0
        taken = store.get_message("Tasks", 0, start, max_messages=2)
        for message in taken.messages:
            print(f"doing {message.body.decode()} (queue offset {message.queue_offset})")
        store.consumer_offsets.commit("Tasks", GROUP, 0, taken.next_queue_offset)
        store.consumer_offsets.persist()
        return taken.max_queue_offset - taken.next_queue_offset


if __name__ == "__main__":
    directory = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    for run in range(2):
        print(f"run {run}: {work(directory)} tasks wait")
