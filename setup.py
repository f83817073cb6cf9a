"""The extension list and the compiler directives; everything else is in pyproject.toml."""

import os
from pathlib import Path

from Cython.Build import cythonize
from Cython.Compiler import Options
from setuptools import Extension, setup

Options.warning_errors = True

# not vectorized: the loops are over fields of records, which gcc gathers through the stack, and
# words that are read from where two halves were just stored wait for both
compile_args = ["-O3", "-fno-tree-vectorize", "-fno-strict-aliasing", "-Wno-unused-function"]
link_args: list[str] = []
if os.environ.get("RMQCORE_DEBUG"):
    compile_args = ["-O1", "-g", "-fno-strict-aliasing", "-DRMQ_DEBUG=1"]
if os.environ.get("RMQCORE_SANITIZE"):
    sanitize = ["-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-g"]
    compile_args = ["-O1", "-fno-strict-aliasing", *sanitize]
    link_args = sanitize

DIRECTIVES = {
    "language_level": "3",
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "embedsignature": True,
    "binding": True,
    "auto_pickle": False,
}

PACKAGE = Path("rmqcore")
HEADERS = sorted(PACKAGE.rglob("*.h")) + sorted(PACKAGE.rglob("*.pxd"))

setup(
    options={"build_ext": {"parallel": os.cpu_count()}},
    ext_modules=cythonize(
        [
            Extension(
                ".".join(leaf.with_suffix("").parts),
                [str(leaf)],
                include_dirs=[str(PACKAGE / "native" / room) for room in ("format", "columns")],
                depends=[str(header) for header in HEADERS],
                extra_compile_args=compile_args,
                extra_link_args=link_args,
            )
            for leaf in sorted(PACKAGE.rglob("*.pyx"))
        ],
        compiler_directives=DIRECTIVES,
        build_dir="build/cython",
    ),
)
