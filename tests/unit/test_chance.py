"""What is drawn by chance differs each time, unless it follows a source."""

import random

import pytest

from rmqcore import chance

pytestmark = pytest.mark.logic


def drawn():
    return chance.token_bytes(8), chance.token_hex(16), [chance.randrange(9) for _ in range(20)]


def test_tokens_have_their_sizes_and_differ():
    assert len(chance.token_bytes(8)) == 8
    assert len({chance.token_hex(16) for _ in range(100)}) == 100
    assert {chance.randrange(3) for _ in range(1000)} == {0, 1, 2}


def test_what_follows_a_source_can_be_had_again_until_it_ends():
    seen = []
    for _ in range(2):
        chance.follow(random.Random(7))
        try:
            seen.append(drawn())
        finally:
            chance.follow(None)
    assert seen[0] == seen[1]
    assert drawn() != seen[0]
