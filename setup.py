"""The extension list and the compiler directives; everything else is in pyproject.toml."""

import os
import re
from pathlib import Path

from Cython.Build import cythonize
from Cython.Compiler import Options
from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel

Options.warning_errors = True

# not vectorized: the loops are over fields of records, which gcc gathers through the stack, and
# words that are read from where two halves were just stored wait for both
compile_args = ["-O3", "-fno-tree-vectorize", "-fno-strict-aliasing", "-Wno-unused-function"]
# without debug data and symbols, which are three quarters of the files
compile_args.append("-g0")
link_args = ["-Wl,--strip-all"]
c_files: dict[str, object] = {"build_dir": "build/cython"}
if os.environ.get("RMQCORE_DEBUG"):
    compile_args = ["-O1", "-g", "-fno-strict-aliasing", "-DRMQ_DEBUG=1"]
    link_args = []
    # symbols, and what a native assertion says, name the lines of the .pyx; so its C is another
    c_files = {"build_dir": "build/debug/cython", "emit_linenums": True}
if sanitizers := os.environ.get("RMQCORE_SANITIZE"):
    sanitize = [f"-fsanitize={sanitizers}", "-fno-omit-frame-pointer", "-g"]
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


class ManylinuxWheel(bdist_wheel):
    """A wheel whose tag says how old a glibc may be that its extensions run with.

    They need no other library; scripts/check_dist.py looks.
    """

    def get_tag(self) -> tuple[str, str, str]:
        """Python, ABI and platform of the wheel."""
        python, abi, platform = super().get_tag()
        if platform.startswith("linux_"):
            built = Path(self.get_finalized_command("build").build_lib).rglob("*.so")
            needed = {
                (int(major), int(minor))
                for path in built
                for major, minor in re.findall(rb"\0GLIBC_(\d+)\.(\d+)", path.read_bytes())
            }
            # PEP 600; no interpreter that this runs with was built for an older one
            major, minor = max(needed | {(2, 17)})
            platform = platform.replace("linux_", f"manylinux_{major}_{minor}_", 1)
        return python, abi, platform


PACKAGE = Path("rmqcore")
HEADERS = sorted(PACKAGE.rglob("*.h")) + sorted(PACKAGE.rglob("*.pxd"))

setup(
    cmdclass={"bdist_wheel": ManylinuxWheel},
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
            # one of them, where a build is to change no other: `make mutants`
            for leaf in sorted(PACKAGE.rglob(os.environ.get("RMQCORE_MODULES", "*.pyx")))
        ],
        compiler_directives=DIRECTIVES,
        **c_files,
    ),
)
