"""What tests of crashes share."""

import subprocess

import pytest


@pytest.fixture
def small_disk(tmp_path):
    """`small_disk(kib)`: the path of a tmpfs of that size."""
    mounted = []

    def mount(kib):
        path = tmp_path / "disk"
        path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", path], check=True)
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", "-l", path], check=True)
