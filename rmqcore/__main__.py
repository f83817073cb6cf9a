"""``python -m rmqcore``: the same as the ``rmqcore`` command; also what ``spark-submit`` takes."""

import sys
from pathlib import Path

if not __package__:
    # run by its path: names of Python's own modules must not find modules of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from rmqcore.cli.main import run

run()
