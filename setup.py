"""The extensions, the index's page, what a wheel has besides; everything else is in pyproject.toml.

RMQCORE_HOME, the address of the project's repository, makes the links of the page absolute.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from Cython.Build import cythonize
from Cython.Compiler import Options
from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

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


HOME = os.environ.get("RMQCORE_HOME", "").rstrip("/")
URLS = {
    "Documentation": f"{HOME}/blob/main/docs/index.md",
    "Source": HOME,
    "Changelog": f"{HOME}/blob/main/CHANGELOG.md",
    "Issues": f"{HOME}/issues",
}
_RELATIVE_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s]+)\)")


def page() -> str:
    """README.md, whose links lead somewhere from the index, too, if it is known where to."""
    text = Path("README.md").read_text("utf-8")
    return _RELATIVE_LINK.sub(rf"]({HOME}/blob/main/\1)", text) if HOME else text


class Build(build):
    """A build whose stubs have the docstrings of the native modules, for editors."""

    def run(self) -> None:
        """Build."""
        super().run()
        # a sanitizer's modules are loaded only by an interpreter with its library, another
        # system's by none here: scripts/zig_wheels writes the stubs then
        if not os.environ.keys() & {"RMQCORE_SANITIZE", "RMQCORE_FOREIGN"}:
            write_docs = [sys.executable, "scripts/stub_docs.py", self.build_lib]
            subprocess.run(write_docs, check=True)  # noqa: S603 - a script of ours


class Wheel(bdist_wheel):
    """A wheel with what it is made of (PEP 770), which leaves its extensions in a clone, too.

    There `import rmqcore` finds the sources first, which without extensions are no package.
    """

    def run(self) -> None:
        """Make the wheel."""
        super().run()
        built = Path(self.get_finalized_command("build").build_lib)
        others = {"RMQCORE_DEBUG", "RMQCORE_SANITIZE", "RMQCORE_FOREIGN"}
        if Path(".git").exists() and not os.environ.keys() & others:
            for extension in built.rglob("*.so"):
                here = extension.relative_to(built)
                if not here.exists() or here.read_bytes() != extension.read_bytes():
                    here.unlink(missing_ok=True)  # an interpreter may have the old one mapped
                    shutil.copy2(extension, here)

    def egg2dist(self, egginfo_path: str, distinfo_path: str) -> None:
        """Make the folder of metadata."""
        super().egg2dist(egginfo_path, distinfo_path)
        sboms = Path(distinfo_path) / "sboms"
        sboms.mkdir(exist_ok=True)
        text = json.dumps(bill_of_materials(self.distribution.get_version()), indent=2)
        (sboms / "rmqcore.cdx.json").write_text(f"{text}\n", "utf-8")


def bill_of_materials(version: str) -> dict[str, object]:
    """What a wheel has in it, CycloneDX: rmqcore alone; nobody else's code is copied into it."""
    itself = {
        "type": "library",
        "bom-ref": "rmqcore",
        "name": "rmqcore",
        "version": version,
        "purl": f"pkg:pypi/rmqcore@{version}",
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }
    numpy = {"type": "library", "bom-ref": "numpy", "name": "numpy", "purl": "pkg:pypi/numpy"}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": itself},
        "components": [{**numpy, "scope": "required"}],
        "dependencies": [{"ref": "rmqcore", "dependsOn": ["numpy"]}, {"ref": "numpy"}],
    }


PACKAGE = Path("rmqcore")
HEADERS = sorted(PACKAGE.rglob("*.h")) + sorted(PACKAGE.rglob("*.pxd"))

setup(
    cmdclass={"build": Build, "bdist_wheel": Wheel},
    long_description=page(),
    long_description_content_type="text/markdown",
    project_urls=URLS if HOME else {},
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
