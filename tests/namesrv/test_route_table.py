"""Routes as RocketMQ's name server keeps them; time passes only when a test says so."""

import pytest
from namesrv.brokers import CLUSTER, Clock, registration, topics

from rmqcore.namesrv import NamesrvConfig
from rmqcore.namesrv.route_data import QueueData, TopicsVersion
from rmqcore.namesrv.route_table import EXPIRED_TIME_MS, RegisterResult, RouteTable

pytestmark = pytest.mark.logic


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def table(clock):
    return RouteTable(clock, NamesrvConfig())


def table_with(clock=None, told=None, **settings):
    return RouteTable(clock or Clock(), NamesrvConfig(**settings), told)


def addrs(table, topic="T"):
    """Broker name -> ids and addresses in the route of a topic."""
    route = table.route(topic)
    return route and {each["brokerName"]: each["brokerAddrs"] for each in route["brokerDatas"]}


def perms(table, topic="T"):
    return {each["brokerName"]: each["perm"] for each in table.route(topic)["queueDatas"]}


def slave(number=1, **more):
    """A slave of 5.x."""
    return registration(number=number, **{"enable_acting_master": False, **more})


def test_a_route_names_brokers_and_queues(table):
    assert table.register(registration(), None) == RegisterResult()
    assert table.route("T") == {
        "brokerDatas": [
            {
                "brokerAddrs": {0: "127.0.0.1:10911"},
                "brokerName": "b",
                "cluster": CLUSTER,
                "enableActingMaster": False,
                "zoneName": None,
            }
        ],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": "b",
                "perm": 6,
                "readQueueNums": 4,
                "topicSysFlag": 0,
                "writeQueueNums": 4,
            }
        ],
        "topicQueueMappingByBroker": None,
    }
    assert table.route("V") is None


def test_several_brokers_of_a_topic_are_one_route(table):
    table.register(registration("a"), None)
    table.register(registration("b", broker_addr="h:2"), None)
    assert addrs(table) == {"a": {0: "127.0.0.1:10911"}, "b": {0: "h:2"}}
    assert table.clusters()["clusterAddrTable"] == {CLUSTER: ["a", "b"]}


def test_a_first_registration_of_a_single_topic_is_refused_and_changes_nothing(table):
    assert table.register(registration(content=topics("T")), None) is None
    assert table.clusters() == {"brokerAddrTable": {}, "clusterAddrTable": {}}
    table.register(registration(), None)
    assert table.register(registration(content=topics("V", counter=2)), None) is not None
    assert sorted(table.topics()) == ["T", "U", "V"]
    before = table.clusters()
    assert table.register(slave(content=topics("T"), broker_addr="127.0.0.1:10911"), None) is None
    assert table.clusters() == before


def test_a_registration_without_topics_is_taken(table):
    assert table.register(registration(content=topics()), None) is not None
    assert table.topics() == []
    assert "b" in table.clusters()["brokerAddrTable"]


def test_a_slave_is_told_its_master_and_adds_its_address(table):
    assert table.register(slave(), None) == RegisterResult()
    table.register(registration(), None)
    assert table.register(slave(), None) == RegisterResult("127.0.0.1:20911", "127.0.0.1:10911")
    assert addrs(table) == {"b": {0: "127.0.0.1:10911", 1: "127.0.0.1:10912"}}


def test_topics_of_a_slave_of_4_9_do_not_count(table):
    table.register(registration(number=1), None)
    assert table.topics() == []


def test_topics_of_the_first_slave_of_5_x_count_and_of_acting_masters_nobody_may_send(table):
    table.register(slave(2), None)
    assert perms(table) == {"b": 6}
    table.register(slave(2, enable_acting_master=True, content=topics("T", "U", counter=2)), None)
    assert perms(table) == {"b": 4}
    table.register(slave(3, content=topics("T", "U", "V", counter=3)), None)
    assert sorted(table.topics()) == ["T", "U"]


def test_topics_change_with_their_version_only(table):
    table.register(registration(content=topics("T", "U", perm=6)), None)
    table.register(registration(content=topics("T", "U", perm=4)), None)
    assert perms(table) == {"b": 6}
    table.register(registration(content=topics("T", "U", perm=4, counter=2)), None)
    assert perms(table) == {"b": 4}


def test_a_topic_that_is_not_named_any_more_stays_unless_it_is_configured(table):
    strict = table_with(delete_topic_with_broker_registration=True)
    for each in (table, strict):
        each.register(registration("a"), None)
        each.register(registration("b", broker_addr="h:2"), None)
        content = topics("T", "V", counter=2)
        each.register(registration("b", broker_addr="h:2", content=content), None)
    assert addrs(table, "U").keys() == {"a", "b"}
    assert addrs(strict, "U").keys() == {"a"}
    assert addrs(strict, "V").keys() == {"b"}


def test_a_slave_that_becomes_master_leaves_its_old_id(table):
    table.register(registration(), None)
    table.register(slave(), None)
    table.unregister(CLUSTER, "127.0.0.1:10911", "b")
    table.register(registration(broker_addr="127.0.0.1:10912"), None)
    assert addrs(table) == {"b": {0: "127.0.0.1:10912"}}


def test_an_older_term_does_not_take_an_id_from_a_later_one(table):
    later = topics("T", "U")
    later = type(later)(TopicsVersion(1, state_version=5), later.topics)
    table.register(registration(content=later), None)
    assert table.register(registration(broker_addr="h:9"), None) == RegisterResult()
    assert addrs(table) == {"b": {0: "127.0.0.1:10911"}}
    assert table.data_version(CLUSTER, "h:9") is None


def test_unregistering_the_last_address_takes_broker_topics_and_cluster_away(table):
    table.register(registration(), None)
    table.register(slave(), None)
    table.unregister(CLUSTER, "127.0.0.1:10911", "b")
    assert addrs(table) == {"b": {1: "127.0.0.1:10912"}}
    table.unregister(CLUSTER, "127.0.0.1:10912", "b")
    assert table.topics() == []
    assert table.clusters() == {"brokerAddrTable": {}, "clusterAddrTable": {}}
    table.unregister(CLUSTER, "127.0.0.1:10912", "b")


def test_a_broker_whose_address_another_one_gives_up_still_expires(table, clock):
    """As the broker that had the address before, under another name, stops."""
    table.register(registration("old"), None)
    table.register(registration("b"), None)
    table.unregister(CLUSTER, "127.0.0.1:10911", "old")
    assert addrs(table) == {"b": {0: "127.0.0.1:10911"}}
    clock.now_s += EXPIRED_TIME_MS / 1000 + 1
    assert [live.broker_name for live in table.expire()] == ["b"]
    assert table.route("T") is None


def test_without_its_master_nobody_may_send_to_a_broker_whose_slaves_stand_in(table):
    table.register(registration(enable_acting_master=True), None)
    table.register(slave(enable_acting_master=True), None)
    table.unregister(CLUSTER, "127.0.0.1:10911", "b")
    assert perms(table) == {"b": 4}


def test_the_lowest_slave_is_shown_as_master_where_that_is_configured():
    plain, acting = table_with(), table_with(support_acting_master=True)
    member = "rmq_sys_SYNC_BROKER_MEMBER_b"
    content = topics("T", member)
    for table in (plain, acting):
        for number in (1, 2):
            table.register(slave(number, enable_acting_master=True, content=content), None)
    ids = {1: "127.0.0.1:10912", 2: "127.0.0.1:10913"}
    assert addrs(plain) == {"b": ids}
    assert addrs(acting) == {"b": {0: "127.0.0.1:10912", 2: "127.0.0.1:10913"}}
    assert addrs(acting, member) == {"b": ids}
    acting.register(registration(enable_acting_master=True, content=content), None)
    assert addrs(acting)["b"].keys() == {0, 1, 2}


def test_a_silent_broker_is_forgotten_and_one_that_is_heard_of_is_not(table, clock):
    table.register(registration("a"), "connection of a")
    table.register(registration("b", broker_addr="h:2", timeout_ms=10_000), "connection of b")
    clock.now_s += 10
    assert table.expire() == []
    clock.now_s += 0.1
    (gone,) = table.expire()
    assert (gone.broker_name, gone.connection) == ("b", "connection of b")
    assert addrs(table).keys() == {"a"}
    table.heard_of(CLUSTER, "127.0.0.1:10911")
    clock.now_s += EXPIRED_TIME_MS / 1000
    assert table.expire() == []
    clock.now_s += 1
    assert len(table.expire()) == 1
    table.heard_of(CLUSTER, "127.0.0.1:10911")
    assert table.topics() == []


def test_a_broker_goes_with_its_last_connection_only(table):
    table.register(registration(), "first")
    table.register(registration(), "second")
    assert table.connection_closed("first") == []
    assert table.topics()
    assert table.connection_closed("second") == ["127.0.0.1:10911"]
    assert table.topics() == []


def test_versions_are_equal_when_all_of_them_is(table):
    table.register(registration(), None)
    here = CLUSTER, "127.0.0.1:10911"
    assert not table.has_changed(*here, TopicsVersion(1))
    for other in (TopicsVersion(2), TopicsVersion(1, 1), TopicsVersion(1, 0, 1)):
        assert table.has_changed(*here, other)
    assert table.has_changed(CLUSTER, "h:1", TopicsVersion(1))


def test_write_permission_is_wiped_and_added_for_all_topics_of_a_broker(table):
    table.register(registration("a", content=topics("T", "U", perm=7)), None)
    table.register(registration("b", broker_addr="h:2"), None)
    assert table.wipe_write_perm("a") == 2
    assert perms(table) == {"a": 5, "b": 6}
    table.register(registration("a", content=topics("T", "U", perm=7)), None)
    assert perms(table)["a"] == 5
    assert table.add_write_perm("a") == 2
    assert perms(table)["a"] == 6
    assert table.wipe_write_perm("nobody") == 0


def test_a_topic_is_deleted_in_one_cluster_or_in_all(table):
    table.register(registration("a"), None)
    table.register(registration("b", broker_addr="h:2", cluster="D"), None)
    table.delete_topic("T", "D")
    assert addrs(table).keys() == {"a"}
    table.delete_topic("U")
    assert table.topics() == ["T"]
    table.delete_topic("T", "nowhere")
    table.delete_topic("V")
    assert table.topics() == ["T"]


def test_queues_are_added_on_known_brokers_only(table):
    table.register(registration(), None)
    table.add_queues("V", [QueueData("b", 1, 1, 6), QueueData("z", 1, 1, 6)])
    table.add_queues("W", [QueueData("z", 1, 1, 6)])
    assert perms(table, "V") == {"b": 6}
    assert "W" not in table.topics()


def test_topics_are_listed_by_cluster_and_unit(table):
    table.register(registration("a"), None)
    table.register(registration("b", broker_addr="h:2", cluster="D", content=topics()), None)
    for topic, flag in (("unit", 1), ("sub", 2), ("both", 3)):
        table.add_queues(topic, [QueueData("b", 1, 1, 6, flag)])
    assert sorted(table.topics_of(CLUSTER)) == ["T", "U"]
    assert sorted(table.topics_of("D")) == ["both", "sub", "unit"]
    assert table.topics_of("nowhere") == []
    assert table.unit_topics() == ["unit", "both"]
    assert table.unit_sub_topics() == ["sub", "both"]
    assert table.unit_sub_only_topics() == ["sub"]
    names, addr = table.system_topics()
    assert sorted(names) == ["C", "D", "a", "b"]
    assert addr in {"127.0.0.1:10911", "h:2"}
    assert table_with().system_topics() == ([], None)


def test_filter_servers_and_static_topics_are_given_out_again(table):
    info = {"topic": "T", "bname": "b", "epoch": 1}
    content = topics("T", "U", filter_servers=("h:9",), mappings={"T": info})
    table.register(registration(content=content), None)
    route = table.route("T")
    assert route["filterServerTable"] == {"127.0.0.1:10911": ["h:9"]}
    assert route["topicQueueMappingByBroker"] == {"b": info}
    table.register(registration(content=topics("T", "U")), None)
    assert table.route("T")["filterServerTable"] == {}
    table.unregister(CLUSTER, "127.0.0.1:10911", "b")
    assert table._mappings == {}


def test_a_change_of_the_lowest_id_is_told_where_that_is_configured():
    told = []
    table = table_with(told=told.append, notify_min_broker_id_changed=True)
    table.register(registration(), None)
    table.register(slave(1), None)
    table.register(slave(2), None)
    assert told == []
    table.unregister(CLUSTER, "127.0.0.1:10913", "b")
    assert told == []
    table.unregister(CLUSTER, "127.0.0.1:10911", "b")
    (event,) = told
    assert event.addrs == {1: "127.0.0.1:10912"}
    assert (event.offline_addr, event.ha_server_addr) == ("127.0.0.1:10911", "127.0.0.1:20912")
    table.register(registration(), None)
    assert (told[1].addrs.keys(), told[1].offline_addr) == ({0, 1}, None)
    quiet = table_with(told=told.append)
    quiet.register(slave(1), None)
    quiet.register(registration(), None)
    assert len(told) == 2
