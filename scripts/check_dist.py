"""Check what `dist/` holds: sources in the sdist, none of them and no debug data in the wheel."""

import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

SOURCES = (".pyx", ".pxd", ".h", ".c")
#: the one C file that Cython has not made
WRITTEN_IN_C = "bench/broker/load.c"
#: What every system that a manylinux wheel may be installed on has.
LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2"}
#: What other programs import by itself, beside the package.
MODULES = ("kombu_rmqcore.py", "pyspark_rmq.py", "pytest_rmqcore.py")
#: The extension modules, as paths without suffix (`rmqcore/_codec`).
NATIVE = sorted(path.with_suffix("").as_posix() for path in Path("rmqcore").rglob("*.pyx"))


def complaints_about_wheel(names: set[str]) -> list[str]:
    """Say what a wheel lacks and what it should not hold."""
    found = [f"wheel holds a source: {name}" for name in sorted(names) if name.endswith(SOURCES)]
    needed = [*MODULES, "rmqcore/py.typed", *(f"{leaf}.pyi" for leaf in NATIVE)]
    needed += sorted(path.as_posix() for path in Path("rmqcore").rglob("*.py"))
    found += [f"wheel lacks {name}" for name in needed if name not in names]
    for leaf in NATIVE:
        if not any(n.startswith(f"{leaf}.") and n.endswith(".so") for n in names):
            found.append(f"wheel lacks the compiled {leaf}")
    allowed = ("rmqcore/", "rmqcore-", *MODULES)
    found += [f"wheel holds {name}" for name in sorted(names) if not name.startswith(allowed)]
    return found


def complaints_about_libraries(wheel: Path) -> list[str]:
    """Say which extensions were not stripped, or need more than the wheel's tag says."""
    tag = re.search(r"-manylinux_(\d+)_(\d+)_\w+\.whl$", wheel.name)
    if tag is None:
        return [f"{wheel.name}: its tag names no manylinux platform"]
    promised = int(tag[1]), int(tag[2])
    found = []
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        for name in [name for name in archive.namelist() if name.endswith(".so")]:
            found += [
                f"{name} {what}" for what in _of_library(archive.extract(name, folder), promised)
            ]
    return found


def _of_library(path: str, promised: tuple[int, int]) -> list[str]:
    def readelf(what: str) -> str:
        command = ["readelf", "--wide", what, path]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    found = [
        f"has the section {section}"
        for section in re.findall(r"\] (\.debug\w*|\.symtab)\s", readelf("--section-headers"))
    ]
    needed = set(re.findall(r"Shared library: \[(.*?)\]", readelf("--dynamic")))
    found += [f"needs {library}" for library in sorted(needed - LIBRARIES)]
    versions = re.findall(r"Name: GLIBC_(\d+)\.(\d+)", readelf("--version-info"))
    newest = max(((int(major), int(minor)) for major, minor in versions), default=(0, 0))
    if newest > promised:
        found.append(f"needs glibc {newest}, the wheel's tag promises {promised}")
    return found


def complaints_about_sdist(names: set[str]) -> list[str]:
    """Say what an sdist lacks and what it should not hold."""
    kinds = {".py", ".pyi", ".pyx", ".pxd", ".h"}
    needed = {path.as_posix() for path in Path("rmqcore").rglob("*") if path.suffix in kinds}
    needed |= {"setup.py", "pyproject.toml", "LICENSE", "README.md"}
    found = [f"sdist lacks {name}" for name in sorted(needed - names)]
    made = {name for name in names if name.endswith((".c", ".so"))}
    found += [f"sdist holds {name}" for name in sorted(made - {WRITTEN_IN_C})]
    return found


def main(dist: Path) -> int:
    """Print what is wrong with the wheel in a folder, and the sdist if there is one; exit code."""
    (wheel,), found = dist.glob("*.whl"), []
    for sdist in dist.glob("*.tar.gz"):
        with tarfile.open(sdist) as archive:
            inside = {name.partition("/")[2] for name in archive.getnames()}
        found += complaints_about_sdist(inside)
    with zipfile.ZipFile(wheel) as archive:
        found += complaints_about_wheel(set(archive.namelist()))
    found += complaints_about_libraries(wheel)
    print(*found, f"{wheel.name}: {len(found)} complaints", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
