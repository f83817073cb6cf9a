"""The owner is killed again and again under load: nothing acknowledged is lost or double."""

import re
from collections import Counter
from contextlib import ExitStack

import pytest
from children import Program
from patience import until
from sharing.processes import PROGRAMS

import rmqcore
from rmqcore.store.sharing.place import MeetingPlace, peer_of

pytestmark = pytest.mark.storm


class Crowd:
    """Processes that put into one store, and who of them owns it."""

    def __init__(self, path, count):
        self.path = path
        self.children = {}
        self.born = 0
        self.killed = set()
        for _ in range(count):
            self.add()

    def add(self):
        self.born += 1
        child = Program(PROGRAMS, "load", self.path, f"p{self.born}")
        child.name = f"p{self.born}"
        self.children[child.pid] = child

    def owner(self):
        """Process id of the owner, None while there is none."""
        with ExitStack() as stack:
            connected = MeetingPlace(self.path).connect(5)
            if connected is None:
                return None
            stack.enter_context(connected)
            return peer_of(connected)

    def acknowledged(self, name):
        path = self.path.parent / f"{name}.acknowledged"
        return path.read_text().split() if path.exists() else []

    def progress(self):
        return sum(
            (self.path.parent / f"{child.name}.acknowledged").stat().st_size
            for child in self.children.values()
            if (self.path.parent / f"{child.name}.acknowledged").exists()
        )

    def kill_owner(self):
        """Kill who owns the store, as soon as there is one and it works."""
        before = self.progress()

        def working():
            owner = self.owner()
            return owner in self.children and self.progress() >= before + 500 and owner

        with self.children.pop(until(working, "an owner, and progress")) as child:
            child.kill()
        self.killed.add(child.name)

    def end(self):
        """Let the others end in order; returns their exit codes."""
        (self.path.parent / "stop").touch()
        return [child.end() for child in self.children.values()]


def check(crowd):
    """Compare what was acknowledged with what the store has."""
    with rmqcore.open_store(crowd.path) as store:
        stored = Counter(message.body.decode() for message in store.messages("T"))
        in_log = Counter(message.body.decode() for message in store.messages())
    assert stored == in_log
    assert [body for body, count in stored.items() if count > 1] == []
    for number in range(1, crowd.born + 1):
        name = f"p{number}"
        acknowledged = crowd.acknowledged(name)
        assert set(acknowledged) <= stored.keys(), f"{name} has lost messages"
        unknown = {
            re.match(rf"{name}-(\d+)-", body)[1]
            for body in stored.keys() - set(acknowledged)
            if body.startswith(f"{name}-")
        }
        # who was killed may have had one call under way
        assert len(unknown) <= (name in crowd.killed), f"{name}: {unknown} were not acknowledged"


@pytest.mark.parametrize(("processes", "kills"), [(3, 2), (8, 100)])
def test_no_acknowledged_message_is_lost_and_none_is_double(tmp_path, processes, kills):
    crowd = Crowd(tmp_path / "store", processes)
    try:
        for _ in range(kills):
            crowd.kill_owner()
            if len(crowd.children) < processes - 1:
                crowd.add()
        assert crowd.end() == [0] * len(crowd.children)
    finally:
        for child in crowd.children.values():
            child.kill()
    check(crowd)
