"""The extension list and the compiler directives; everything else is in pyproject.toml."""

import os

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

LEAVES = [
    "_arrow",
    "_chains",
    "_codec",
    "_columns",
    "_commit_group",
    "_dispatch",
    "_encoder",
    "_entry_check",
    "_get_result",
    "_hold",
    "_host",
    "_index",
    "_key_query",
    "_log_end",
    "_log_map",
    "_mapped",
    "_message",
    "_plain_reads",
    "_putter",
    "_queue_offsets",
    "_tail",
    "_turn",
    "metaq._message_set",
    "metaq._segment_tail",
]

setup(
    options={"build_ext": {"parallel": os.cpu_count()}},
    ext_modules=cythonize(
        [
            Extension(
                f"rmqcore.{leaf}",
                [f"rmqcore/{leaf.replace('.', '/')}.pyx"],
                include_dirs=["rmqcore"],
                depends=[
                    "rmqcore/_arrow.h",
                    "rmqcore/_bytes.h",
                    "rmqcore/_crc32.h",
                    "rmqcore/_utf8.h",
                    "rmqcore/_bytes.pxd",
                    "rmqcore/_layout.pxd",
                    "rmqcore/_record.pxd",
                    "rmqcore/metaq/_record.pxd",
                ],
                extra_compile_args=compile_args,
                extra_link_args=link_args,
            )
            for leaf in LEAVES
        ],
        compiler_directives=DIRECTIVES,
        build_dir="build/cython",
    ),
)
