"""What every test stands on: the compiled modules, seeds, Hypothesis profiles, fresh stores."""

import importlib
import importlib.machinery
import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from golden.stores import unpack

ROOT = Path(__file__).parents[1]
#: Every extension module that the sources say there must be.
NATIVE = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "rmqcore").rglob("*.pyx"))
]

settings.register_profile(
    "default",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("long", settings.get_profile("default"), max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def package_folder():
    """Return the folder that `import rmqcore` reads."""
    return Path(importlib.import_module("rmqcore").__path__[0]).resolve()


def pytest_addoption(parser):
    group = parser.getgroup("rmqcore")
    group.addoption("--seed", type=int, help="seed of the tests that use plain random numbers")
    group.addoption("--no-skip", action="store_true", help="a test that is skipped has failed")
    group.addoption("--rmqcore-from", metavar="DIR", help="refuse any other rmqcore")


def pytest_configure(config):
    wanted = config.getoption("--rmqcore-from")
    if wanted and not package_folder().is_relative_to(Path(wanted).resolve()):
        raise pytest.UsageError(f"rmqcore comes from {package_folder()}, not from {wanted}")
    suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    for name in NATIVE:
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            raise pytest.UsageError(f"{name} is not built: {error}; run `make build`") from error
        if not module.__file__.endswith(suffixes):
            raise pytest.UsageError(f"{name} is not the compiled module: {module.__file__}")


def pytest_report_header():
    codec = importlib.import_module("rmqcore._codec")
    return f"rmqcore: {package_folder()}, CRC-32 by {codec.crc32_implementation()}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if report.skipped and item.config.getoption("--no-skip") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and --no-skip was given: {report.longrepr}"
    return report


@pytest.fixture
def seed(request):
    """A fresh seed for each test, shown when the test fails; `--seed` gives it again."""
    chosen = request.config.getoption("--seed")
    if chosen is None:
        chosen = random.SystemRandom().getrandbits(32)
    print(f"replay with --seed={chosen}")
    return chosen


@pytest.fixture
def rng(seed):
    """Random numbers that `--seed` replays."""
    return random.Random(seed)


@pytest.fixture
def store_path(tmp_path):
    """The path of a store that does not exist yet."""
    return tmp_path / "store"


@pytest.fixture
def golden_store(tmp_path):
    """`golden_store(release, name)`: a fresh, writable copy of a store that RocketMQ wrote."""

    def fresh(release, name):
        return unpack(release, name, tmp_path / f"golden-{release}-{name}")

    return fresh


def pytest_collection_modifyitems(items):
    """Keep a file in one process of pytest-xdist, and the tests of Spark in one session."""
    for item in items:
        folder = item.path.parent
        together = folder if folder.name == "spark" else item.path
        item.add_marker(pytest.mark.xdist_group(str(together)))
