"""Check what `dist/` holds: sources in the sdist, and none of them in the wheel."""

import sys
import tarfile
import zipfile
from pathlib import Path

SOURCES = (".pyx", ".pxd", ".h", ".c")
#: The extension modules, as paths without suffix (`rmqcore/_codec`).
NATIVE = sorted(path.with_suffix("").as_posix() for path in Path("rmqcore").rglob("*.pyx"))


def complaints_about_wheel(names: set[str]) -> list[str]:
    """Say what a wheel lacks and what it should not hold."""
    found = [f"wheel holds a source: {name}" for name in sorted(names) if name.endswith(SOURCES)]
    needed = ["pyspark_rmq.py", "rmqcore/py.typed", *(f"{leaf}.pyi" for leaf in NATIVE)]
    needed += sorted(path.as_posix() for path in Path("rmqcore").rglob("*.py"))
    found += [f"wheel lacks {name}" for name in needed if name not in names]
    for leaf in NATIVE:
        if not any(n.startswith(f"{leaf}.") and n.endswith(".so") for n in names):
            found.append(f"wheel lacks the compiled {leaf}")
    allowed = ("rmqcore/", "rmqcore-", "pyspark_rmq.py")
    found += [f"wheel holds {name}" for name in sorted(names) if not name.startswith(allowed)]
    return found


def complaints_about_sdist(names: set[str]) -> list[str]:
    """Say what an sdist lacks and what it should not hold."""
    kinds = {".py", ".pyi", ".pyx", ".pxd", ".h"}
    needed = {path.as_posix() for path in Path("rmqcore").rglob("*") if path.suffix in kinds}
    needed |= {"setup.py", "pyproject.toml", "LICENSE", "README.md"}
    found = [f"sdist lacks {name}" for name in sorted(needed - names)]
    found += [f"sdist holds {name}" for name in sorted(names) if name.endswith((".c", ".so"))]
    return found


def main(dist: Path) -> int:
    """Print what is wrong with the distributions in a folder; return the exit code."""
    (sdist,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    found = complaints_about_sdist(inside)
    with zipfile.ZipFile(wheel) as archive:
        found += complaints_about_wheel(set(archive.namelist()))
    print(*found, f"{sdist.name}, {wheel.name}: {len(found)} complaints", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
