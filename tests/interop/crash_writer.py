"""A child process that puts messages until it is killed: `crash_writer.py STORE`.

Prints the physical offset of each message after its put returned.
"""

import signal
import sys

import rmqcore
from interop.writers import CRASH_PUTS_MAX, CRASH_SIZES

#: once it is written, a second after the opening, RocketMQ dispatches from the last log file only,
#: and drops the index files that it does not vouch for
NO_CHECKPOINT = {"flush_interval_consume_queue_ms": 600_000}


def main(path: str) -> None:
    with rmqcore.open_store(path, config=CRASH_SIZES | NO_CHECKPOINT) as store:
        for number in range(CRASH_PUTS_MAX):
            result = store.put(
                "TopicCrash",
                b"x" * (number * 37 % 900),
                queue_id=number % 3,
                tags=f"T{number % 4}",
                keys=(f"R{number}",),
            )
            print(result.phy_offset, flush=True)
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1])
