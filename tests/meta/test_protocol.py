"""What the `MessageStore` protocol promises, the store has: the same names, the same arguments."""

import inspect
import re
from unittest.mock import ANY

import pytest

import rmqcore.message
from rmqcore import DefaultMessageStore, MessageStore
from rmqcore.store.sharing.shared_store import SharedMessageStore

pytestmark = pytest.mark.engine

PROMISED = [
    name
    for name, value in vars(MessageStore).items()
    if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
]


def arguments(function):
    """(kind, default) of each argument by name; any default of those that a typed dict names."""
    parameters = inspect.signature(function).parameters.values()
    found = {each.name: (each.kind, each.default) for each in parameters}
    for each in parameters:
        if dict_of_names := re.fullmatch(r"Unpack\[(\w+)\]", str(each.annotation)):
            del found[each.name]
            names = getattr(rmqcore.message, dict_of_names[1]).__annotations__
            found |= dict.fromkeys(names, (each.KEYWORD_ONLY, ANY))
    return found


@pytest.mark.parametrize("kind", [DefaultMessageStore, SharedMessageStore])
@pytest.mark.parametrize("name", PROMISED)
def test_the_store_has_what_the_protocol_promises(kind, name):
    promised, given = getattr(MessageStore, name), getattr(kind, name)
    if isinstance(promised, property):
        assert isinstance(given, property)
        return
    assert arguments(given) == arguments(promised)
    assert inspect.iscoroutinefunction(given) == inspect.iscoroutinefunction(promised)


@pytest.mark.engine
def test_an_open_store_is_a_message_store(store_path):
    with rmqcore.open_store(store_path) as store:
        assert isinstance(store, MessageStore)
