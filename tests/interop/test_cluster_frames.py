"""Frames and streams have the topics of Apache RocketMQ's brokers as they have those of ours."""

import pytest
from frames.test_cluster import (  # noqa: F401 - the same tests, other brokers
    create,
    remake,
    send,
    test_a_batch_has_every_message_of_a_topic_once,
    test_a_batch_is_cut_for_tasks_and_has_only_what_is_chosen,
    test_a_batch_of_which_the_topic_was_made_anew_is_not_of_the_new_one,
    test_a_limit_is_shared_by_the_backlog,
    test_a_stream_begins_at_the_end_and_has_what_comes,
    test_a_table_that_follows_a_broker_is_not_given_another_topic,
    test_a_topic_that_was_made_anew_is_told,
    test_a_topic_that_was_made_anew_is_told_however_long_it_is,
    test_available_now_ends_at_what_there_was,
    test_offsets_behind_the_end_are_told,
    test_only_a_group_that_is_named_gets_the_progress,
    test_rows_of_a_table_are_sent_with_keys_that_can_be_told_again,
    test_times_cut_a_batch,
    test_topics_and_queues_that_are_new_enter_at_their_earliest,
    test_what_waits_at_a_broker_is_no_row_unless_it_is_named,
    topic,
)

from interop.cluster import java_cluster
from interop.peer import missing
from rmqcore.testing import rocketmq_topic  # noqa: F401 - a fixture

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(bool(missing()), reason=f"not on this machine: {', '.join(missing())}"),
]


@pytest.fixture(scope="module", params=["5.5.0", "4.9.7"])
def rocketmq_broker(request, tmp_path_factory):
    """A broker and a name server of RocketMQ."""
    with java_cluster(request.param, tmp_path_factory.mktemp("java")) as broker:
        yield broker
