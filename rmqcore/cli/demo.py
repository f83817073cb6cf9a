"""``rmqcore demo`` in a clone of the repository, whose ``examples/demo`` it is."""

from __future__ import annotations

from rmqcore.cli.examples import example

demo = example("demo.command").demo
