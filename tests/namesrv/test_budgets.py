"""What brokers and operators name is kept up to a bound, and who wants more is told so."""

import asyncio
import json
import sys
import threading
import zlib

import pytest
from namesrv.brokers import registration, topics
from namesrv.test_register_body import piece
from namesrv.test_requests import BROKER, scene
from patience import until_async

from rmqcore.namesrv import NamesrvConfig, kv_config, requests, route_table
from rmqcore.namesrv.kv_config import KVConfig
from rmqcore.namesrv.route_data import TopicsVersion
from rmqcore.namesrv.route_table import RouteTable
from rmqcore.remoting import RequestCode, RequestRefusedError, ResponseCode

pytestmark = pytest.mark.engine

REFUSED = ResponseCode.SYSTEM_ERROR


def table():
    return RouteTable(lambda: 0.0, NamesrvConfig())


@pytest.mark.logic
def test_a_broker_that_tells_other_topics_each_time_does_not_fill_the_table(monkeypatch):
    monkeypatch.setattr(route_table, "TOPICS_OF_BROKER", 4)
    routes = table()
    for round_, names in enumerate((("A", "B"), ("C", "D"), ("A", "C"))):
        routes.register(registration(content=topics(*names, counter=round_)), "c")
    with pytest.raises(RequestRefusedError, match="too many topics of a broker: 4 at most"):
        routes.register(registration(content=topics("A", "E", counter=9)), "c")
    assert sorted(routes.topics()) == ["A", "B", "C", "D"]
    routes.delete_topic("A")
    routes.register(registration(content=topics("B", "E", counter=10)), "c")
    assert sorted(routes.topics()) == ["B", "C", "D", "E"]
    routes.connection_closed("c")
    assert routes.topics() == []
    routes.register(registration(content=topics("1", "2", "3", "4", counter=1)), "c")


@pytest.mark.logic
def test_brokers_that_are_in_an_earlier_term_leave_no_filter_servers():
    routes = table()
    content = topics("T", "U", filter_servers=("f",))
    later = type(content)(TopicsVersion(1, state_version=5), content.topics)
    routes.register(registration(content=later, broker_addr="127.0.0.1:1"), "c")
    for port in range(2, 5):
        address = {"broker_addr": f"127.0.0.1:{port}", "content": content}
        routes.register(registration(number=1, **address), "c")
        # another has this id
        routes.register(registration(number=0, **address), "c")
    assert routes._filters.keys() == set()


@pytest.mark.logic
def test_all_brokers_together_have_a_bound_too(monkeypatch):
    monkeypatch.setattr(route_table, "TOPICS_MAX", 5)
    routes = table()
    routes.register(registration("a", content=topics("A", "B", "C")), "c1")
    addr = {"broker_addr": "127.0.0.1:2"}
    with pytest.raises(RequestRefusedError, match="too many topics of all brokers: 5 at most"):
        routes.register(registration("b", content=topics("A", "B", "C"), **addr), "c2")
    assert routes.group("C", "b")["brokerAddrs"] == {}
    routes.register(registration("b", content=topics("A", "B"), **addr), "c2")
    with pytest.raises(RequestRefusedError):
        routes.add_queues("D", [topics("D").topics["D"].queues_of("b", 6)])


@pytest.mark.logic
def test_brokers_and_what_they_say_of_themselves_have_bounds(monkeypatch):
    routes = table()
    for number in range(route_table.BROKERS_OF_CONNECTION):
        routes.register(registration(f"b{number}", broker_addr=f"h:{number}"), "c")
    with pytest.raises(RequestRefusedError, match="brokers over one connection"):
        routes.register(registration("more", broker_addr="h:more"), "c")
    monkeypatch.setattr(route_table, "BROKERS_MAX", route_table.BROKERS_OF_CONNECTION)
    with pytest.raises(RequestRefusedError, match="too many brokers"):
        routes.register(registration("more", broker_addr="h:more"), "c2")
    # those that are known go on
    routes.register(registration("b0", broker_addr="h:0"), "c2")
    wrong = (
        topics("T" * 256, "U"),
        topics("T", "U", filter_servers=("f",) * 65),
        topics("T", "U", mappings={"T": {"x": "y" * (16 << 10)}}),
        topics("T", "U", mappings={f"T{n}": {} for n in range(4097)}),
    )
    for content in wrong:
        with pytest.raises(RequestRefusedError, match="too many"):
            routes.register(registration("b0", broker_addr="h:0", content=content), "c2")


@pytest.mark.logic
def test_a_broker_tells_its_static_topics_again_and_takes_them_along(monkeypatch):
    monkeypatch.setattr(route_table, "MAPPINGS_MAX", 4)
    routes, mappings = table(), {f"S{n}": {"bname": "another"} for n in range(3)}
    for counter in (1, 2):
        content = topics("T", "U", counter=counter, mappings=mappings)
        routes.register(registration("b", content=content), "c")
    addr = {"broker_addr": "127.0.0.1:2"}
    content = topics("T", "U", mappings={"S0": {}, "S9": {}})
    with pytest.raises(RequestRefusedError, match="too many static topics: 4 at most"):
        routes.register(registration("b2", content=content, **addr), "c2")
    routes.connection_closed("c")
    routes.register(registration("b2", content=content, **addr), "c2")
    routes.connection_closed("c2")
    assert routes._mappings == {}


@pytest.mark.logic
def test_an_address_that_takes_another_name_leaves_the_one_it_had():
    routes = table()
    for number in range(100):
        routes.register(registration(f"b{number}", content=topics("T", f"U{number}")), "c")
    assert list(routes.clusters()["brokerAddrTable"]) == ["b99"]
    assert sorted(routes.topics()) == ["T", "U99"]


@pytest.mark.logic
def test_a_broker_goes_without_a_look_at_the_topics_of_others():
    def steps(others):
        routes, counted = table(), 0
        names = [f"T{number}" for number in range(others)]
        routes.register(registration("a", content=topics(*names)), "c1")
        routes.register(registration("b", broker_addr="h:2", content=topics("T0", "U")), "c2")

        def count(_, event, __):
            nonlocal counted
            counted += event == "line"
            return count

        traced = sys.gettrace()
        sys.settrace(count)
        try:
            routes.wipe_write_perm("b")
            routes.connection_closed("c2")
        finally:
            sys.settrace(traced)
        assert sorted(routes.topics()) == sorted(names)
        return counted

    assert steps(2000) == steps(20)


@pytest.mark.logic
def test_keys_and_values_have_bounds(monkeypatch):
    monkeypatch.setattr(kv_config, "ENTRIES_MAX", 3)
    monkeypatch.setattr(kv_config, "SIZE_MAX", 40)
    kv = KVConfig()
    for key in "abc":
        kv.put("N", key, "v")
    with pytest.raises(RequestRefusedError, match="no more keys, 3 at most"):
        kv.put("M", "d", "v")
    kv.put("N", "a", "w")
    kv.delete("N", "b")
    with pytest.raises(RequestRefusedError, match="characters of keys and values, 40 at most"):
        kv.put("N", "c", "v" * 40)
    assert kv.namespace("N") == {"a": "w", "c": "v"}


@pytest.mark.logic
def test_namespaces_without_a_key_leave_room_for_others(monkeypatch):
    monkeypatch.setattr(kv_config, "SIZE_MAX", 20)
    kv = KVConfig()
    for number in range(5):
        kv.put(f"space-{number}", "k", "v")
        kv.delete(f"space-{number}", "k")
    # as RocketMQ has it, as long as there is room
    assert kv.namespace("space-4") == {}
    kv.put("N", "a", "v" * 10)
    assert kv.get("N", "a") == "v" * 10
    with pytest.raises(RequestRefusedError, match="characters of keys and values"):
        kv.put("N", "b", "v" * 10)


def test_who_wants_more_is_answered(monkeypatch):
    monkeypatch.setattr(kv_config, "ENTRIES_MAX", 1)

    async def play():
        async with scene() as s:
            entry = {"namespace": "N", "key": "a", "value": "v"}
            assert (await s.ask(RequestCode.PUT_KV_CONFIG, entry)).code == 0
            more = await s.ask(RequestCode.PUT_KV_CONFIG, {**entry, "key": "b"})
            assert (more.code, more.remark) == (REFUSED, "no more keys, 1 at most, are kept")
            large = b" " * (requests.BODY_SIZE_MAX + 1)
            for code in (RequestCode.QUERY_DATA_VERSION, RequestCode.REGISTER_TOPIC_IN_NAMESRV):
                fields = {**BROKER, "topic": "T", "brokerId": "0"}
                answer = await s.ask(code, fields, large)
                assert (answer.code, answer.remark[:6]) == (REFUSED, "a body")
            name = {**BROKER, "brokerId": "0", "haServerAddr": "", "brokerName": "n" * 256}
            assert (await s.ask(RequestCode.REGISTER_BROKER, name)).code == REFUSED

    asyncio.run(play())


@pytest.mark.parametrize("packed", [False, True])
def test_others_are_answered_while_a_key_is_written_or_a_registration_read(
    tmp_path, monkeypatch, packed
):
    began, goes_on = threading.Event(), threading.Event()

    def slowly(function):
        def waits(*args, **more):
            began.set()
            assert goes_on.wait(60)
            return function(*args, **more)

        return waits

    monkeypatch.setattr(KVConfig, "put", slowly(KVConfig.put))
    monkeypatch.setattr(requests, "read_register_body", slowly(requests.read_register_body))
    entry = {"namespace": "N", "key": "a", "value": "v"}
    names = {f"topic-{number}": {} for number in range(5000)}
    content = {"topicConfigSerializeWrapper": {"topicConfigTable": names}}
    body = json.dumps(content).encode()
    if packed:
        lines = b"".join(map(piece, (b"%b 4 4 6 SINGLE_TAG" % name.encode() for name in names)))
        body = zlib.compress(
            piece(b"{}") + len(names).to_bytes(4) + lines + piece(b"[]") + bytes(4)
        )
    assert (len(body) > requests.READ_AT_ONCE) is not packed
    broker = {**BROKER, "brokerId": "0", "haServerAddr": ""}

    async def play():
        async with scene(kv_config_path=str(tmp_path / "kv.json")) as s, scene() as _:
            for code, fields, large in (
                (RequestCode.PUT_KV_CONFIG, entry, b""),
                (RequestCode.REGISTER_BROKER, broker, body),
            ):
                began.clear()
                goes_on.clear()
                asked = asyncio.create_task(s.ask(code, fields, large))
                await until_async(began.is_set, "it is worked on")
                assert (await s.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).code == 0
                assert not asked.done()
                goes_on.set()
                assert (await asked).code == 0
            assert (await s.ask(RequestCode.GET_KV_CONFIG, entry)).ext_fields["value"] == "v"
            assert (await s.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "topic-7"})).code == 0

    asyncio.run(play())


@pytest.mark.parametrize("then", ["registers", "leaves"])
def test_what_a_broker_says_while_its_registration_is_read_counts_after_it(monkeypatch, then):
    began, goes_on = threading.Event(), threading.Event()
    read = requests.read_register_body

    def slowly(body, version, *, compressed):
        if len(body) > requests.READ_AT_ONCE:
            began.set()
            assert goes_on.wait(60)
        return read(body, version, compressed=compressed)

    monkeypatch.setattr(requests, "read_register_body", slowly)

    def body(count, queues):
        table = {f"topic-{number}": {"readQueueNums": queues} for number in range(count)}
        wrapper = {"topicConfigTable": table, "dataVersion": {"counter": queues}}
        return json.dumps({"topicConfigSerializeWrapper": wrapper}).encode()

    broker = {**BROKER, "brokerId": "0", "haServerAddr": ""}
    other = {**broker, "brokerName": "other", "brokerAddr": "127.0.0.1:20911"}

    async def play():
        async with scene() as s:
            asked = [s.ask(RequestCode.REGISTER_BROKER, broker, body(5000, 1))]
            if then == "registers":
                asked.append(s.ask(RequestCode.REGISTER_BROKER, broker, body(2, 2)))
            else:
                asked.append(s.ask(RequestCode.UNREGISTER_BROKER, broker))
            asked[0] = asyncio.create_task(asked[0])
            await until_async(began.is_set, "it is read")
            asked[1] = asyncio.create_task(asked[1])
            # it has been received, as another's that came behind it is answered
            assert (await s.ask(RequestCode.REGISTER_BROKER, other, body(2, 7))).code == 0
            goes_on.set()
            assert {(await each).code for each in asked} == {0}
            route = await s.body_of(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "topic-0"})
            queues = {
                each["brokerName"]: each["readQueueNums"]
                for each in json.loads(route)["queueDatas"]
            }
            assert queues == ({"b": 2, "other": 7} if then == "registers" else {"other": 7})

    asyncio.run(play())


def test_what_waits_to_be_written_is_bounded(monkeypatch):
    began, goes_on = threading.Event(), threading.Event()
    monkeypatch.setattr(requests, "HELD_SIZE_MAX", 10_000)

    def waits(*_):
        began.set()
        assert goes_on.wait(60)

    monkeypatch.setattr(KVConfig, "put", waits)
    entry = {"namespace": "N", "key": "a", "value": "v" * 5000}

    async def play():
        async with scene() as s:
            asked = asyncio.create_task(s.ask(RequestCode.PUT_KV_CONFIG, entry))
            await until_async(began.is_set, "it is written")
            assert (await s.ask(RequestCode.PUT_KV_CONFIG, entry)).code == ResponseCode.SYSTEM_BUSY
            goes_on.set()
            assert (await asked).code == 0
            assert (await s.ask(RequestCode.PUT_KV_CONFIG, entry)).code == 0

    asyncio.run(play())
