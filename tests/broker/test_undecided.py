"""What is known of half messages: as all of both queues tells, of which each is read once."""

import pytest

from rmqcore.broker.send.undecided import Undecided

pytestmark = pytest.mark.logic


class Queues:
    """Half messages, and the notes of them: (half offset, whether it was given up)."""

    def __init__(self, rng):
        self.rng = rng
        self.halves = 0
        self.notes = []

    def go_on(self):
        """Have something come."""
        for _ in range(self.rng.randrange(6)):
            self.halves += self.rng.random() < 0.5
            open_ones = [n for n in range(self.halves) if not self.state(n)[0]]
            if open_ones and self.rng.random() < 0.6:
                # mostly in their order, and the first ones late
                half = self.rng.choice(open_ones[-3:] if self.rng.random() < 0.9 else open_ones)
                self.notes.append((half, self.rng.random() < 0.2))

    def state(self, half, notes=None):
        """Whether a half message is decided, and whether anything is noted of it."""
        kinds = {given_up for n, given_up in self.notes[:notes] if n == half}
        return False in kinds, bool(kinds)


def read_notes(undecided, queues):
    for half, given_up in queues.notes[undecided.note_offset :]:
        undecided.add_note([half], given_up=given_up)
    undecided.note_offset = len(queues.notes)


def one_round(undecided, queues):
    later_notes = len(queues.notes)
    queues.go_on()
    end = queues.halves
    queues.go_on()
    read_notes(undecided, queues)
    queues.go_on()
    for half in range(undecided.half_offset, queues.rng.randint(end, queues.halves)):
        undecided.add_half(half)
    undecided.later_notes = later_notes


def test_what_is_undecided_is_what_both_queues_tell_over_rounds_and_restarts(rng):
    for _ in range(60):
        queues, undecided = Queues(rng), Undecided(0, 0)
        for _ in range(12):
            one_round(undecided, queues)
            first, notes_from = undecided.begin()
            assert all(half < first for half, _ in queues.notes[:notes_from])
            again = Undecided(first, notes_from)
            read_notes(again, queues)
            if rng.random() < 0.3:
                undecided = again
            read_notes(undecided, queues)
            for half in range(first, queues.halves):
                decided, noted = queues.state(half)
                for each in (undecided, again):
                    assert each.is_ended(half) == decided
                    assert (half in each) == (not noted and half < each.half_offset)


def test_a_half_message_that_is_read_twice_is_taken_in_once():
    undecided = Undecided(0, 0)
    undecided.add_note([0], given_up=False)
    for _ in range(2):
        undecided.add_half(0)
    assert undecided.offsets() == []
    assert undecided.is_ended(0)


def test_little_is_kept_however_many_are_decided_behind_one_that_is_not():
    undecided = Undecided(0, 0)
    undecided.add_half(0)
    for half in range(1, 1000):
        undecided.add_note([half], given_up=False)
        undecided.add_half(half)
    assert undecided.offsets() == [0]
    assert not undecided._early
    assert not undecided._given_up
