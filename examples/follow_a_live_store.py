"""A second process reads what the first one writes, without a lock and without stopping it."""

import subprocess
import sys
import tempfile
import time

import rmqcore

READER = """
import sys, time, rmqcore
with rmqcore.open_store(sys.argv[1], mode="r") as store:
    offset = 0
    while offset < 5:
        result = store.get_message("Ticks", 0, offset)
        for message in result.messages:
            print("reader:", message.body.decode(), flush=True)
        offset = result.next_queue_offset
        time.sleep(0.01)
"""

if __name__ == "__main__":
    directory = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    with rmqcore.open_store(directory) as store:
        reader = subprocess.Popen([sys.executable, "-c", READER, directory])
        for number in range(5):
            store.put("Ticks", b"tick %d" % number)
            time.sleep(0.05)
        sys.exit(reader.wait(60))
