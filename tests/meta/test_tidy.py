"""The project keeps the house rules, and each rule can fail."""

import re
from pathlib import Path

import pytest
from meta.tidy import BANS, complaints, project_files

pytestmark = pytest.mark.logic

ROOT = Path(__file__).parents[2]

#: Ban -> texts that break it, with the file they would stand in.
BROKEN = {
    "mmap": [
        ("rmqcore/files/a.py", "import mmap\n"),
        ("rmqcore/files/a.py", "from mmap import mmap\n"),
        ("rmqcore/files/a.py", "mmap.flush()\n"),
    ],
    "raise in noexcept": [
        ("rmqcore/_a.pyx", "cdef int f(int x) noexcept:\n    if x:\n        raise ValueError(x)\n"),
        (
            "rmqcore/_a.pyx",
            "cdef class A:\n    cdef int f(\n        self\n    ) noexcept:\n        raise A\n",
        ),
    ],
    "void with nogil": [
        ("rmqcore/_a.pyx", "cdef void f() nogil:\n    pass\n"),
        ("rmqcore/_a.pxd", "cdef inline void f(int a, int* b) nogil\n"),
    ],
    "except *": [("rmqcore/_a.pyx", "cdef int f() except *:\n    return 0\n")],
    "DEF, IF, include": [
        ("rmqcore/_a.pyx", "DEF SIZE = 4\n"),
        ("rmqcore/_a.pyx", "IF UNAME_SYSNAME == 'Linux':\n    pass\n"),
        ("rmqcore/_a.pyx", 'include "part.pxi"\n'),
    ],
    "bare except": [
        ("rmqcore/a.py", "try:\n    f()\nexcept:\n    g()\n"),
        ("rmqcore/_a.pyx", "try:\n    f()\nexcept:\n    g()\n"),
    ],
    "print(": [("rmqcore/a.py", 'print("here")\n'), ("rmqcore/_a.pyx", "def f():\n    print(1)\n")],
    "assert": [("rmqcore/a.py", "def f(x):\n    assert x\n")],
    "slice of a head": [
        ("rmqcore/a.py", 'size = int.from_bytes(head[:4], "big", signed=True)\n'),
        ("rmqcore/scan/a.py", 'own = int.from_bytes(self.head[28:36], "big", signed=True)\n'),
        ("rmqcore/a.py", 'size = int.from_bytes(\n    piece[at : at + 4], "big"\n)\n'),
        ("rmqcore/a.py", 'size, magic = struct.unpack_from(">ii", head)\n'),
    ],
    "unfinished": [
        ("rmqcore/a.py", "# TODO: the rest\n"),
        ("rmqcore/_bytes.h", "// FIXME later\n"),
        ("tests/unit/test_a.py", '"""XXX."""\n'),
    ],
    "commented-out code": [
        ("rmqcore/_a.pyx", "# return crc32(buffer)\n"),
        ("rmqcore/_a.pyx", "    # at += head.body_size\n"),
        ("rmqcore/_a.pyx", "# if size > limit:\n"),
        ("rmqcore/_a.pyx", "# import os\n"),
    ],
    "a constant's comment without a subject": [
        ("rmqcore/a.py", "#: of one queue\nSIZE_MAX = 8\n"),
        ("rmqcore/a.py", "A = 1\n#: so many are kept\n#: at once\nKEPT_MAX = 8\n"),
    ],
    "typed memoryview": [("rmqcore/_a.pyx", "def f(const uint8_t[::1] data):\n    pass\n")],
}

#: What looks like a broken rule and is none.
FINE = [
    ("rmqcore/_a.pyx", "cdef void f() noexcept nogil:\n    pass\n"),
    ("rmqcore/_a.pyx", "cdef int f(int x) except -1:\n    raise ValueError(x)\n"),
    (
        "rmqcore/_a.pyx",
        "cdef int f() noexcept:\n    return 0\n\n\ndef g():\n    raise ValueError\n",
    ),
    ("rmqcore/_a.pyx", "cdef class A(B):\n" + "    def f(self):\n        pass\n" * 40),
    ("rmqcore/_a.pyx", "# at is NULL when it has none\n# what is left: body, topic, properties\n"),
    ("rmqcore/_a.pyx", "# a pair is `name 0x01 value 0x02`, the last separator may be missing\n"),
    ("rmqcore/a.py", '"""Never print(), never except:."""\n'),
    ("rmqcore/a.py", "store.print()\n"),
    ("rmqcore/a.py", "#: A queue has at most this many messages\n#: of one group.\nMAX = 8\n"),
    ("rmqcore/cli/main.py", 'print("here")\n'),
    ("rmqcore/native/a.py", "size = int.from_bytes(head[:4])\n"),
    ("rmqcore/a.py", "value = int.from_bytes(data[at : at + size])\nhead = data[:4]\n"),
    ("rmqcore/a.py", "values = table[int.from_bytes(data)], data[4:8]\n"),
    ("tests/unit/test_a.py", "import mmap\nassert mmap\nprint(1)\n"),
]


@pytest.mark.engine
@pytest.mark.parametrize("path", list(project_files(ROOT)))
def test_file_is_tidy(path):
    found = complaints(path, (ROOT / path).read_text("utf-8"))
    assert found == []


@pytest.mark.parametrize(
    "path",
    [
        "native/format/_record.pxd",
        "native/format/_batch.pxd",
        "native/format/_encoder.pyx",
        "native/format/_chain.pxd",
        "_index.pyx",
        "native/log/_log_end.pxd",
        "native/log/_log_end.pyx",
        "native/log/_tail.pyx",
        "native/log/_commit_group.pyx",
        "native/derive/_dispatch.pyx",
        "native/read/_log_map.pyx",
        "native/columns/_column_store.pxd",
    ],
)
def test_a_kernel_asserts_what_it_takes_for_granted(path):
    assert re.search(r"^ +RMQ_ASSERT\(", (ROOT / "rmqcore" / path).read_text("utf-8"), re.MULTILINE)


def test_every_ban_has_an_example():
    assert {ban.name for ban in BANS} == BROKEN.keys()


@pytest.mark.parametrize(
    ("name", "path", "text"), [(n, *c) for n, cs in BROKEN.items() for c in cs]
)
def test_a_broken_rule_is_found(name, path, text):
    (found,) = complaints(path, text)
    (ban,) = (ban for ban in BANS if ban.name == name)
    assert found.startswith(f"{path}:")
    assert f"{name} is banned; write {ban.instead}" in found


@pytest.mark.parametrize(("path", "text"), FINE)
def test_what_only_looks_broken_is_left_alone(path, text):
    assert not complaints(path, text)


def test_the_line_of_a_complaint_is_right():
    text = '"""Two\nlines."""\n\n\ncdef int f() noexcept:\n    x = 1\n    raise x\n'
    assert complaints("rmqcore/_a.pyx", text)[0].startswith("rmqcore/_a.pyx:7: ")


@pytest.mark.parametrize(
    ("path", "line", "limit"),
    [("rmqcore/a.py", "a = 1\n", 600), ("rmqcore/_a.pyx", "a = 1\n", 500)],
)
def test_a_long_file_is_found(path, line, limit):
    assert not complaints(path, line * limit)
    assert len(complaints(path, line * (limit + 1))) == 1


def test_a_long_line_is_found():
    assert not complaints("rmqcore/a.py", "a" * 100 + "\n")
    assert len(complaints("rmqcore/a.py", "a" * 101 + "\n")) == 1


@pytest.mark.parametrize("path", ["rmqcore/a.py", "rmqcore/_a.pyx"])
def test_a_long_function_is_found_and_its_docstring_is_not_counted(path):
    docstring = '    """One.\n\n' + "    Two.\n" * 30 + '    """\n'
    head = f"def f():\n{docstring}"
    assert not complaints(path, head + "    a = 1\n" * 59)
    (found,) = complaints(path, head + "    a = 1\n" * 60)
    assert "f has 61 lines" in found
