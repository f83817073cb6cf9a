"""Nothing but the world reads a clock, sleeps or syncs, and nothing but chance draws."""

from pathlib import Path

import pytest
from meta.outside import WORLD, native_reads, outside, python_reads, ungiven_worlds

pytestmark = pytest.mark.logic

ROOT = Path(__file__).parents[2]


@pytest.mark.engine
def test_nothing_but_the_world_and_chance_asks_the_system():
    assert outside(ROOT) == []


def test_the_world_is_where_it_is_said_to_be():
    assert all((ROOT / name).exists() for name in WORLD)


@pytest.mark.parametrize(
    "text",
    [
        "import time\ntime.time()\n",
        "import time\nx = time.monotonic\n",
        "import time as t\nt.sleep(1)\n",
        "from time import perf_counter\n",
        "from time import localtime\nlocaltime()\n",
        "import time\ntime.strftime('%Y')\n",
        "import os\nos.fsync(3)\n",
        "from os import fdatasync\n",
        "import os\ncall = os.sync\n",
        "from datetime import datetime\ndatetime.now()\n",
        "import datetime\ndatetime.date.today()\n",
        "def f():\n    import time\n    time.time_ns()\n",
        "import random\nrandom.random()\n",
        "import random\nrandom.Random()\n",
        "from random import choice\n",
        "import secrets\nsecrets.token_hex(8)\n",
        "import uuid\nuuid.uuid4()\n",
        "import os.path\nos.urandom(8)\n",
    ],
)
def test_python_that_asks_by_itself_is_found(text):
    assert list(python_reads(text))


@pytest.mark.parametrize(
    "text",
    [
        "import asyncio\nasync def f():\n    await asyncio.sleep(1)\n",
        "from time import localtime, strftime\nstrftime('%Y', localtime(0))\n",
        "from datetime import datetime\ndatetime.fromtimestamp(0)\n",
        "from rmqcore.world import sleep, sync_fd\nsleep(1)\nsync_fd(3)\n",
        "self.file.sync()\nloop.time()\nself.time.monotonic()\n",
        "import os\nos.path.sync\n",
        "import random\nrandom.Random(7).random()\n",
        "import uuid\nuuid.UUID(int=7)\n",
        "from rmqcore.chance import token_hex\ntoken_hex(8)\n",
    ],
)
def test_python_that_does_not_is_not(text):
    assert not list(python_reads(text))


@pytest.mark.parametrize(
    "text",
    [
        "from rmqcore.world import monotonic_s\n",
        "from rmqcore.world import sleep as rest\n",
        "from rmqcore import world\nworld.wall_clock_ms()\n",
        "import rmqcore.world\nrmqcore.world.sleep(1)\n",
        "from rmqcore.world import REAL\nnow = REAL.clock_ms()\n",
        "from rmqcore.world import REAL\ndef f(clock_ms=REAL.clock_ms): ...\n",
        "from rmqcore.world import REAL\ndef f(other=REAL): ...\n",
        "from rmqcore.world import World\nworld = World()\n",
    ],
)
def test_a_world_that_nobody_has_given_is_found(text):
    assert list(ungiven_worlds(text))


@pytest.mark.parametrize(
    "text",
    [
        "from rmqcore.world import REAL, World\ndef f(a, *, world: World = REAL): ...\n",
        "from rmqcore.world import REAL, World\nasync def f(a=1, world: World = REAL): ...\n",
        "def f(self):\n    self.world.sleep(self.world.monotonic_s())\n",
        "from rmqcore.world import sync_directory, sync_fd\nsync_fd(3)\n",
        "async def f(loop):\n    await asyncio.sleep(loop.time())\n",
    ],
)
def test_a_world_that_is_given_is_not(text):
    assert not list(ungiven_worlds(text))


@pytest.mark.parametrize(
    "text",
    [
        "int a = msync(at, size, MS_SYNC);\n",
        'cdef extern from *:\n    """\n    static int f(int fd) { return fsync(fd); }\n    """\n',
        "    clock_gettime(CLOCK_REALTIME, &now)\n",
        "import time\n",
        "return time(NULL);\n",
    ],
)
def test_native_code_that_asks_by_itself_is_found(text):
    assert list(native_reads(text))


@pytest.mark.parametrize(
    "text",
    [
        '# msync(at) is not called here\n"""``fsync``, and no more."""\n',
        'RMQ_AS(int, rmq_msync, "msync", void *at) { return syscall(SYS_msync, at); }\n',
        "/* fsync(fd) */ // fsync(fd)\n",
        "cdef double began = read_monotonic_s()\nself.fixed_time(3)\n",
    ],
)
def test_native_code_that_does_not_is_not(text):
    assert not list(native_reads(text))
