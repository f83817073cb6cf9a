"""What scripts/check_dist.py complains about in the extensions of a wheel."""

import importlib.util
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_dist.py"
SOURCE = "#include <math.h>\ndouble f(double x) { return sin(x); }\n"


@pytest.fixture(scope="module")
def check():
    spec = importlib.util.spec_from_file_location("check_dist", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def wheel(tmp_path):
    """Make a wheel of one extension, compiled with some arguments."""

    def make(tag, *arguments):
        library = tmp_path / "one.so"
        command = [shutil.which("cc"), "-x", "c", "-", "-shared", "-fPIC", "-o", library]
        subprocess.run([*command, *arguments], input=SOURCE.encode(), check=True)
        path = tmp_path / f"one-1-cp311-cp311-{tag}_x86_64.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(library, "one/one.so")
        return path

    return make


def test_a_stripped_extension_of_a_tagged_wheel_is_fine(check, wheel):
    path = wheel("manylinux_2_99", "-Wl,--strip-all", "-lm")
    assert check.complaints_about_libraries(path) == []


@pytest.mark.parametrize(
    ("tag", "arguments", "said"),
    [
        ("manylinux_2_99", ["-g"], "one/one.so has the section .debug_info"),
        ("manylinux_2_99", ["-g0"], "one/one.so has the section .symtab"),
        ("manylinux_2_99", ["-s", "-Wl,--no-as-needed", "-lgcc_s"], "one/one.so needs libgcc_s.so"),
        ("manylinux_2_1", ["-s", "-lm"], "the wheel's tag promises (2, 1)"),
        ("linux", ["-s"], "its tag names no manylinux platform"),
    ],
)
def test_what_is_not_is_named(check, wheel, tag, arguments, said):
    found = check.complaints_about_libraries(wheel(tag, *arguments))
    assert any(said in complaint for complaint in found), found
