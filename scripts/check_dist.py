"""Check what `dist/` holds: sources in the sdist, none of them and no debug data in the wheel."""

import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

SOURCES = (".pyx", ".pxd", ".h", ".c")
#: What every system that a manylinux wheel may be installed on has.
LIBRARIES = {
    "libc.so.6",
    "libm.so.6",
    "libpthread.so.0",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
    "libc.musl-x86_64.so.1",
    "libc.musl-aarch64.so.1",
    "libc.so",  # musl's, as zig writes it: the loader takes it for itself
}
#: What musl has got since 1.2.0, which a tag musllinux_1_2 promises to do with; it has no versions.
NEW_IN_MUSL = {
    "_Fork",
    "gettid",
    "preadv2",
    "pwritev2",
    "qsort_r",
    "reallocarray",
    "statx",
}
#: What other programs import by itself, beside the package.
MODULES = ("kombu_rmqcore.py", "pyspark_rmq.py", "pytest_rmqcore.py")
#: What the pages for a browser are made of.
PAGES = {".html", ".css", ".js", ".svg"}
#: The extension modules, as paths without suffix (`rmqcore/_codec`).
NATIVE = sorted(path.with_suffix("").as_posix() for path in Path("rmqcore").rglob("*.pyx"))


def complaints_about_wheel(names: set[str]) -> list[str]:
    """Say what a wheel lacks and what it should not hold."""
    found = [f"wheel holds a source: {name}" for name in sorted(names) if name.endswith(SOURCES)]
    needed = [*MODULES, "rmqcore/py.typed", *(f"{leaf}.pyi" for leaf in NATIVE)]
    needed += sorted(
        path.as_posix() for path in Path("rmqcore").rglob("*") if path.suffix in {".py", *PAGES}
    )
    found += [f"wheel lacks {name}" for name in needed if name not in names]
    for leaf in NATIVE:
        if not any(n.startswith(f"{leaf}.") and n.endswith(".so") for n in names):
            found.append(f"wheel lacks the compiled {leaf}")
    for what in ("licenses/LICENSE", "licenses/NOTICE", "sboms/rmqcore.cdx.json"):
        if not any(n.endswith(f".dist-info/{what}") for n in names):
            found.append(f"wheel lacks {what}")
    allowed = ("rmqcore/", "rmqcore-", *MODULES)
    found += [f"wheel holds {name}" for name in sorted(names) if not name.startswith(allowed)]
    return found


def complaints_about_libraries(wheel: Path, release: bool = False) -> list[str]:
    """Say which extensions were not stripped, or need more than the wheel's tag says.

    A wheel with a tag of this machine alone promises nothing, and is none to release.
    """
    tag = re.search(r"-(?:manylinux|(musllinux))_(\d+)_(\d+)_\w+\.whl$", wheel.name)
    if tag is None and (release or not re.search(r"-linux_\w+\.whl$", wheel.name)):
        return [f"{wheel.name}: its tag names no manylinux or musllinux platform"]
    promised = (int(tag[2]), int(tag[3])) if tag and not tag[1] else None
    musl = tag is not None and tag[1] is not None
    found = []
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        for name in [name for name in archive.namelist() if name.endswith(".so")]:
            found += [
                f"{name} {what}"
                for what in _of_library(archive.extract(name, folder), promised, musl=musl)
            ]
    return found


def _of_library(path: str, promised: tuple[int, int] | None, *, musl: bool) -> list[str]:
    def readelf(what: str) -> str:
        command = ["readelf", "--wide", what, path]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    found = [
        f"has the section {section}"
        for section in re.findall(r"\] (\.debug\w*|\.symtab)\s", readelf("--section-headers"))
    ]
    needed = set(re.findall(r"Shared library: \[(.*?)\]", readelf("--dynamic")))
    found += [f"needs {library}" for library in sorted(needed - LIBRARIES)]
    if musl:
        symbols = re.findall(r" UND (\w+)", readelf("--dyn-syms"), re.MULTILINE)
        found += [f"needs a later musl for {name}" for name in sorted(NEW_IN_MUSL & {*symbols})]
    versions = re.findall(r"Name: GLIBC_(\d+)\.(\d+)", readelf("--version-info"))
    newest = max(((int(major), int(minor)) for major, minor in versions), default=(0, 0))
    if promised and newest > promised:
        found.append(f"needs glibc {newest}, the wheel's tag promises {promised}")
    return found


def complaints_about_sdist(names: set[str]) -> list[str]:
    """Say what an sdist lacks and what it should not hold."""
    kinds = {".py", ".pyi", ".pyx", ".pxd", ".h", *PAGES}
    needed = {path.as_posix() for path in Path("rmqcore").rglob("*") if path.suffix in kinds}
    needed |= {"setup.py", "pyproject.toml", "LICENSE", "README.md"}
    found = [f"sdist lacks {name}" for name in sorted(needed - names)]
    foreign = (".c", ".so")
    found += [
        f"sdist holds {name}"
        for name in sorted(names)
        if name.endswith(foreign) or name.startswith(("tests/", "bench/"))
    ]
    return found


def complaints_about_page(metadata: str) -> list[str]:
    """Say what an index would not show as it should: no address, links that lead nowhere."""
    found = [] if "\nProject-URL: " in metadata else ["no address of the project: set RMQCORE_HOME"]
    page = metadata.partition("\n\n")[2]
    links = re.findall(r"\]\((?![a-z]+:|#)([^)\s]+)\)", page)
    return found + [f"the page has the relative link {link}" for link in links]


def complaints(wheel: Path, release: bool) -> list[str]:
    """Say what is wrong with a wheel; with one that is to be released, also with its page."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (n for n in names if n.endswith(".dist-info/METADATA"))
        page = archive.read(metadata).decode()
    found = complaints_about_wheel(names) + complaints_about_libraries(wheel, release)
    return found + (complaints_about_page(page) if release else [])


def main(dist: Path, release: bool) -> int:
    """Print what is wrong with the wheels in a folder, and the sdist if there is one; exit code."""
    found = []
    for sdist in dist.glob("*.tar.gz"):
        with tarfile.open(sdist) as archive:
            inside = {name.partition("/")[2] for name in archive.getnames()}
        found += complaints_about_sdist(inside)
    wheels = sorted(dist.glob("*.whl"))
    for wheel in wheels:
        found += complaints(wheel, release)
    if not wheels:
        found.append(f"no wheel in {dist}")
    print(*found, f"{', '.join(w.name for w in wheels)}: {len(found)} complaints", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), release="--release" in sys.argv))
