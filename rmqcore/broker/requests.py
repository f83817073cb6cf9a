"""The requests that a broker serves: whose methods answer them, and what each needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rmqcore.broker.admin.assignment import Assignment
from rmqcore.broker.admin.broker import AdminBroker
from rmqcore.broker.admin.groups import AdminGroups
from rmqcore.broker.admin.offsets import AdminOffsets
from rmqcore.broker.admin.query import QueryMessages
from rmqcore.broker.admin.runtime_info import RuntimeInfo
from rmqcore.broker.admin.topics import AdminTopics
from rmqcore.broker.pop.acks import PopAcks
from rmqcore.broker.pop.looks import PopLooks
from rmqcore.broker.pop.pop import PopMessages
from rmqcore.broker.pull.pull import PullMessages
from rmqcore.broker.replication.replication import Replication
from rmqcore.broker.send.reply import ReplyMessages
from rmqcore.broker.send.send import SendMessages
from rmqcore.broker.send.transactions import Transactions
from rmqcore.broker.state.client_requests import ClientRequests
from rmqcore.broker.state.offsets import Offsets
from rmqcore.broker.state.queue_locks import QueueLocks
from rmqcore.broker.timer.recall import RecallMessages
from rmqcore.broker.timer.timer import TimerMessages
from rmqcore.namesrv.requests import NamesrvRequests
from rmqcore.remoting.needs import Rule
from rmqcore.remoting.serves import needs_of

#: The classes whose objects answer a broker's requests, each declared there with `serves`.
HANDLERS: Final = (
    SendMessages,
    ReplyMessages,
    Transactions,
    RecallMessages,
    PullMessages,
    PopMessages,
    PopLooks,
    PopAcks,
    Offsets,
    ClientRequests,
    QueueLocks,
    Assignment,
    TimerMessages,
    QueryMessages,
    RuntimeInfo,
    AdminTopics,
    AdminGroups,
    AdminOffsets,
    AdminBroker,
    Replication,
)
#: What each request needs, for the gate of a broker and of a name server. Both know the requests of
#: both, so that whoever may send one and asks the wrong server hears that it is not served there.
NEEDS: Final[Mapping[int, Rule]] = needs_of(*HANDLERS, NamesrvRequests)
