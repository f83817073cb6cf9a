"""The suites of what is adapted: modules of the sources that `make peers` fetches."""

import importlib.util
import os
import sys
from pathlib import Path

VERSIONS = dict(
    line.split()[0].split("==")
    for line in Path(__file__).with_name("suites.txt").read_text("ascii").splitlines()
)


def folder(package):
    """Return the folder of a package's unpacked sources."""
    return Path(os.environ["RMQCORE_SUITES"]).resolve() / f"{package}-{VERSIONS[package]}"


def module(package, path):
    """Import a file of a package's sources."""
    name = f"suite_{package}_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, folder(package) / path)
    loaded = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded
