"""What every test stands on: the compiled modules, lanes, seeds, Hypothesis, fresh stores."""

import contextlib
import fcntl
import gc
import importlib
import importlib.machinery
import os
import random
import struct
import tempfile
import zlib
from pathlib import Path

import heap
import pytest
from _pytest.pathlib import import_path
from figure import figure  # noqa: F401 - a fixture
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from lanes import LanePlugin
from late import LatePlugin
from temporary import AT_END
from traces import traces_of

from golden.stores import unpack
from rmqcore.config import store_config
from rmqcore.errors import StoreError
from rmqcore.store.open_stores import OPEN_STORES

ROOT = Path(__file__).parents[1]
#: Every extension module that the sources say there must be.
NATIVE = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "rmqcore").rglob("*.pyx"))
]

#: Seeds that once found something, each with its test: the gate runs them beside a test's own.
SEEDS = Path(__file__).parent / "seeds.txt"

#: Of a store whose test names no size: each page that is reserved in memory takes time.
LOG_FILE_SIZE = 8 << 20
#: The sizes of such a store's files for users.
EMBEDDED = store_config._PROFILES["embedded"]

#: Percent of a disk. Above 85 a broker deletes log files whatever their age, above 90 it refuses
#: messages; a run takes some of the rest.
DISK_USED_MAX = 80

#: Of Linux: reads and sets a file's flags, and the flag of a directory whose own are unrelated.
_GET_FLAGS, _SET_FLAGS, _UNRELATED = 0x80086601, 0x40086602, 0x00020000

settings.register_profile(
    "gate",
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("storm", settings.get_profile("gate"), derandomize=False)
settings.register_profile("long", settings.get_profile("storm"), max_examples=5000)


def draw_alike_whatever_is_imported():
    """Let Hypothesis draw no constants of the modules that happen to be imported.

    Which these are follows from the tests that ran before, and from what else a change has touched.
    """
    providers._get_local_constants = lambda: providers._local_constants


def reserve_less_for_embedded_stores():
    """Let stores that are opened without settings have small log files, in this process."""
    sizes = {"mapped_file_size_commit_log": LOG_FILE_SIZE}
    store_config._PROFILES["embedded"] = EMBEDDED | sizes


@pytest.fixture
def embedded_as_released(monkeypatch):
    """Stores that are opened without settings have the files that they have for users."""
    monkeypatch.setitem(store_config._PROFILES, "embedded", EMBEDDED)


def package_folder():
    """Return the folder that `import rmqcore` reads."""
    return Path(importlib.import_module("rmqcore").__path__[0]).resolve()


def pytest_addoption(parser):
    group = parser.getgroup("rmqcore")
    group.addoption("--seed", type=int, help="the seed of every test that has one: replays it")
    group.addoption("--storm", type=int, help="draw the seeds of all tests from this number")
    group.addoption("--late", type=int, help="hold tests up, as this number says: late.py")
    group.addoption("--no-skip", action="store_true", help="a test that is skipped has failed")
    group.addoption("--rmqcore-from", metavar="DIR", help="refuse any other rmqcore")


def refuse_full_disk(path):
    """Test nothing where brokers would do what they do on a disk that is nearly full.

    Raises:
        UsageError: the disk is.
    """
    percent = importlib.import_module("rmqcore.services.retention").disk_usage(path).percent
    if percent > DISK_USED_MAX:
        raise pytest.UsageError(
            f"{path}: {percent} % of the disk are in use, and brokers delete files and refuse "
            f"messages above 85: make room, or give --basetemp on a disk below {DISK_USED_MAX} %"
        )


def pytest_configure(config):
    config.pluginmanager.register(LanePlugin(), "lanes")
    if (number := config.getoption("--late")) is not None:
        config.pluginmanager.register(LatePlugin(number), "late")
    profile = "gate" if config.getoption("--storm") is None else "storm"
    profile = os.environ.get("HYPOTHESIS_PROFILE", profile)
    settings.load_profile(profile)
    if profile == "gate":
        draw_alike_whatever_is_imported()
        if "measure" not in config.option.markexpr:
            reserve_less_for_embedded_stores()
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
    base = Path(config.getoption("basetemp") or tempfile.gettempdir()).absolute()
    refuse_full_disk(next(path for path in (base, *base.parents) if path.exists()))


def import_a_share(config):
    """Import the modules of tests whose turn it is of this worker; all import all of them later.

    Each would compile each module of a fresh clone otherwise: what has been compiled is kept.
    """
    number, count = int(config.workerinput["workerid"][2:]), config.workerinput["workercount"]
    asked = {config.invocation_params.dir / one.partition("::")[0] for one in config.args}
    paths = {path for one in asked for path in (one.rglob("test_*.py") if one.is_dir() else [one])}
    for path in sorted(paths)[number::count]:
        # whoever collects it says what is wrong with it
        with contextlib.suppress(Exception, pytest.skip.Exception):
            import_path(path, mode="importlib", root=ROOT, consider_namespace_packages=False)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Keep what ten thousand tests and their modules are."""
    gc.disable()
    if hasattr(session.config, "workerinput"):
        import_a_share(session.config)
    try:
        return (yield)
    finally:
        gc.enable()
        heap.keep()
        heap.make_forks_cheap()


def refuse_open_stores(folder):
    """Fail when a test has left a store below its `tmp_path` open, and close it.

    One that nobody has any more is closed when it is collected.
    """
    if any(store.path.is_relative_to(folder) for store in list(OPEN_STORES)):
        gc.collect()
        left = [store for store in list(OPEN_STORES) if store.path.is_relative_to(folder)]
        said = f"left open: {left}"
        for store in left:
            # pytest may have removed its files
            with contextlib.suppress(StoreError):
                store.close()
        if left:
            pytest.fail(said)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """Keep what the tests of a file have left, such as modules that only they import.

    A store may not be among it: its services would work beside every later test of the process.
    """
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    yield
    if folder is not None:
        refuse_open_stores(folder)
    if nextitem is None or nextitem.path != item.path:
        heap.keep()


def pytest_unconfigure():
    AT_END.close()


def pytest_report_header():
    codec = importlib.import_module("rmqcore._codec")
    return f"rmqcore: {package_folder()}, CRC-32 by {codec.crc32_implementation()}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item):
    # a finalizer that fails inside the parser of pytest's own report would end the whole run:
    # CPython 3.11 has one count of depth for all calls of ast.parse
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        report = yield
    finally:
        if was_enabled:
            gc.enable()
    if report.skipped and item.config.getoption("--no-skip") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and --no-skip was given: {report.longrepr}"
    if report.failed:
        report.sections += traces_of(item)
    return report


def kept_seeds():
    """Return {test: [seeds]} of `seeds.txt`: a seed, its test, and what it found, on a line."""
    kept = {}
    for line in SEEDS.read_text("utf-8").splitlines():
        number, test, *_ = line.split()
        kept.setdefault(test, []).append(int(number))
    return kept


def pytest_generate_tests(metafunc):
    """Let a test run with its kept seeds, too; those of a storm's test do so in the gate."""
    config = metafunc.config
    if "seed" not in metafunc.fixturenames or config.getoption("--seed") is not None:
        return
    test = f"{metafunc.definition.path.relative_to(ROOT)}::{metafunc.definition.name}"
    kept = kept_seeds().get(test, ())
    if kept and config.getoption("--storm") is None:
        is_storm = any(mark.name == "storm" for mark in metafunc.definition.own_markers)
        marks = [pytest.mark.process] if is_storm else []
        again = [pytest.param(number, marks=marks, id=f"seed={number}") for number in kept]
        metafunc.parametrize("seed", [pytest.param(None, id="own"), *again], indirect=True)


def spread(directory):
    """Have a file system put the directories made in one far from each other, if it knows how.

    Else all tests' files have one table of inodes on ext4. Without a journal it uses none again for
    minutes, so each new file looks through those of all tests that have just ended: 1 to 8 ms of
    system time a test.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            flags = struct.unpack("l", fcntl.ioctl(descriptor, _GET_FLAGS, bytes(8)))[0]
            fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("l", flags | _UNRELATED))
    finally:
        os.close(descriptor)


@pytest.fixture(scope="session")
def tmp_path_factory(tmp_path_factory):
    """As pytest's own; what lies where no test can tell."""
    spread(tmp_path_factory.getbasetemp())
    return tmp_path_factory


@pytest.fixture
def seed(request):
    """The seed of a test: told by its name, so that the gate always runs the same.

    `--seed` says another, `--storm` draws one from its number and the name; it is shown when the
    test fails.
    """
    config = request.config
    chosen = config.getoption("--seed")
    if chosen is None:
        chosen = getattr(request, "param", None)
    if chosen is None:
        drawn_from = "" if (number := config.getoption("--storm")) is None else str(number)
        chosen = zlib.crc32((drawn_from + request.node.nodeid).encode())
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
    """Begin with Spark: nothing else that one process has to run takes so long."""
    items.sort(key=lambda item: item.path.parent.name != "spark")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Keep a file in one process of pytest-xdist, and the tests of Spark in one session."""
    scheduling = importlib.import_module("scheduling")
    config.option.loadscopereorder = False
    return scheduling.Scheduling(config, log)
