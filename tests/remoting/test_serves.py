"""A request is declared where it is answered, with what it needs; without that it cannot be."""

import pytest

from rmqcore.errors import ArgumentError
from rmqcore.remoting import RemotingCommand, RequestCode, ResponseCode, needs
from rmqcore.remoting.accounts import Account, Permission
from rmqcore.remoting.permissions import AccessGate
from rmqcore.remoting.serves import declared_by, needs_of, processors_of, serves

pytestmark = pytest.mark.logic


class Greetings:
    @serves(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, needs=needs.consume)
    def pull(self, _, request):
        """Say what was asked for.

        And more.
        """
        return self, request

    @serves(RequestCode.GET_BROKER_CONFIG, needs=needs.ADMIN)
    def get(self, *_):
        return "settings"


def test_what_is_declared_is_served_with_what_it_needs():
    handler = Greetings()
    processors = processors_of(handler)
    assert processors[RequestCode.LITE_PULL_MESSAGE](None, 1) == (handler, 1)
    assert processors[RequestCode.GET_BROKER_CONFIG](None, 1) == "settings"
    assert needs_of(Greetings) == {11: needs.consume, 361: needs.consume, 26: needs.ADMIN}
    assert {each.code: each.about for each in declared_by(Greetings)} == {
        11: "Say what was asked for.",
        361: "Say what was asked for.",
        26: "",
    }


@pytest.mark.parametrize("needed", [None, "consume", Permission.SUB, True])
def test_a_request_without_a_rule_cannot_be_declared(needed):
    with pytest.raises(TypeError):
        serves(RequestCode.PULL_MESSAGE)
    with pytest.raises(ArgumentError, match="ADMIN"):
        serves(RequestCode.PULL_MESSAGE, needs=needed)
    with pytest.raises(ArgumentError, match="codes"):
        serves(needs=needs.consume)
    with pytest.raises(ArgumentError, match="codes"):
        serves(11, needs=needs.consume)


def test_one_method_answers_a_request_and_it_declares_all_that_it_answers_at_once():
    class Others:
        @serves(RequestCode.PULL_MESSAGE, needs=needs.any_account)
        def also(self, *_): ...

    for read in (needs_of, lambda *classes: processors_of(*(each() for each in classes))):
        with pytest.raises(ArgumentError, match=r"Greetings\.pull"):
            read(Greetings, Others)
    with pytest.raises(ArgumentError, match="declared once"):
        serves(RequestCode.HEART_BEAT, needs=needs.any_account)(Others.also)


def test_who_overrides_a_method_declares_anew_or_serves_nothing():
    class Louder(Greetings):
        def get(self, *_):
            return "loud"

    assert RequestCode.GET_BROKER_CONFIG not in processors_of(Louder())
    assert RequestCode.PULL_MESSAGE in processors_of(Louder())


def test_a_gate_lets_pass_what_is_declared_and_nothing_else():
    operator = Account("o", "secret-0", admin=True)
    consumer = Account("c", "secret-1", topics={"A": Permission.SUB}, groups={"G": Permission.SUB})
    gate = AccessGate({}, needs_of(Greetings))
    fields = {"consumerGroup": "G", "topic": "A"}

    def code(account, request, **more):
        refused = gate.refusal_of(account, RemotingCommand(request, {**fields, **more}))
        return refused and refused.code

    assert code(consumer, RequestCode.LITE_PULL_MESSAGE) is None
    assert code(consumer, RequestCode.PULL_MESSAGE, topic="B") == ResponseCode.NO_PERMISSION
    assert code(consumer, RequestCode.GET_BROKER_CONFIG) == ResponseCode.NO_PERMISSION
    assert code(operator, RequestCode.GET_BROKER_CONFIG) is None
    assert code(operator, RequestCode.POP_MESSAGE) == ResponseCode.NO_PERMISSION
