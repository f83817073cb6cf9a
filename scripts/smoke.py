"""What any installed rmqcore has to do: put, read, look up by key, and run its command."""

import shutil
import subprocess
import sys
import tempfile

import rmqcore


def main() -> None:
    """Do it in a temporary directory; an exception is what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/store"
        with rmqcore.open_store(path) as store:
            store.put("T", b"one", keys="k-1")
            (found,) = store.query_message("T", "k-1").messages
            assert found.body == b"one"
        with rmqcore.Queue(f"{folder}/queue") as queue:
            queue.put({"n": 1})
            assert queue.get(timeout=10) == {"n": 1}
            queue.done()
        command = shutil.which("rmqcore")
        if command:
            said = subprocess.check_output([command, "tail", path, "T"], text=True)
            assert "one" in said, said
    print("rmqcore", rmqcore.__version__, "on Python", sys.version.split()[0], "works")


if __name__ == "__main__":
    main()
