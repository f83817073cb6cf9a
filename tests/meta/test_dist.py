"""What scripts/check_dist.py complains about in the extensions of a wheel."""

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_dist.py"
SOURCE = "#include <math.h>\ndouble f(double x) { return sin(x); }\n"
#: The call in SOURCE becomes one of a name that the C library has, and musl has only of late.
CALLS_PREADV2 = "-Dsin(x)=preadv2(x)"


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
        ("musllinux_1_2", ["-s", "-std=gnu89", CALLS_PREADV2], "needs a later musl for preadv2"),
        ("linux", ["-s"], "its tag names no manylinux or musllinux platform"),
    ],
)
def test_what_is_not_is_named(check, wheel, tag, arguments, said):
    found = check.complaints_about_libraries(wheel(tag, *arguments), release=True)
    assert any(said in complaint for complaint in found), found


def test_a_wheel_of_this_machine_alone_is_none_to_release(check, wheel):
    path = wheel("linux", "-s")
    assert check.complaints_about_libraries(path) == []
    assert check.complaints_about_libraries(path, release=True) != []


def test_the_index_shows_a_page_whose_links_lead_somewhere(check, tmp_path):
    command = [sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", str(tmp_path)]
    settings = {"RMQCORE_HOME": "https://example.org/rmqcore/", "RMQCORE_MODULES": "_index.pyx"}
    root = SCRIPT.parents[1]
    subprocess.run(command, cwd=root, env={**os.environ, **settings}, check=True)
    metadata = (tmp_path / "rmqcore.egg-info" / "PKG-INFO").read_text("utf-8")
    assert check.complaints_about_page(metadata) == []
    found = check.complaints_about_page(
        "Name: rmqcore\n\n" + (root / "README.md").read_text("utf-8")
    )
    assert found[0] == "no address of the project: set RMQCORE_HOME"
    assert "the page has the relative link docs/install.md" in found


def test_the_bill_of_materials_is_asked_for(check):
    found = check.complaints_about_wheel(set())
    assert "wheel lacks sboms/rmqcore.cdx.json" in found
    assert "wheel lacks licenses/NOTICE" in found


def test_tests_and_their_stores_are_not_in_an_sdist(check):
    found = check.complaints_about_sdist({"tests/golden/a.tar", "rmqcore/_codec.c"})
    assert "sdist holds tests/golden/a.tar" in found
    assert "sdist holds rmqcore/_codec.c" in found


def test_pip_adds_an_extra_to_what_is_installed_without_the_index(tmp_path):
    """What error messages and pages print works: the project on an index is not asked for."""
    info = tmp_path / "rmqcore-0.dist-info"
    info.mkdir()
    head = "Metadata-Version: 2.1\nName: rmqcore\nVersion: 0\nProvides-Extra: huey\n"
    (info / "METADATA").write_text(head + 'Requires-Dist: huey; extra == "huey"\n')
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--dry-run", "rmqcore[huey]"]
    path = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "satisfied: huey" in done.stdout
