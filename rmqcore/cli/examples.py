"""The demonstrations, which lie in ``examples/`` of the repository and in no installation."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

#: Below the repository's root, beside the package; an installed package has no such neighbour.
EXAMPLES: Final = Path(__file__).absolute().parents[2] / "examples"
#: What the commands say where there is none.
NOT_HERE: Final = (
    "the demonstrations are in examples/ of the source repository: clone it, and run it there "
    "(make run)"
)


def has_examples() -> bool:
    """Tell whether this package lies in a clone of the repository."""
    return (EXAMPLES / "demo" / "command.py").is_file()


def example(module: str) -> Any:
    """Import a module of the examples.

    Raises:
        ImportError: there are none here, see `has_examples`.
    """
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    return import_module(module)
