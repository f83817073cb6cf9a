"""``python -m rmqcore``: the same as the ``rmqcore`` command."""

from rmqcore.cli.main import run

run()
