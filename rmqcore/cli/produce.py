"""``rmqcore produce`` and ``rmqcore consume``: messages to and from any RocketMQ."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from enum import StrEnum
from itertools import islice
from typing import Annotated, cast

import typer

from rmqcore.cli.exit_codes import ExitCode
from rmqcore.cli.failures import warn
from rmqcore.cli.formats import FORMAT_HELP, printer
from rmqcore.cli.named import remote_topics
from rmqcore.cli.near import near
from rmqcore.cli.notes import note
from rmqcore.cli.options import AsJson, Long, parse_settings
from rmqcore.cli.output import print_json
from rmqcore.cli.remote import (
    DEFAULT_NAME_SERVER,
    AccessKey,
    NameServer,
    SecretKey,
    Tls,
    access,
)
from rmqcore.cli.tables import cell_text
from rmqcore.cli.times import parse_time, parse_time_to_come
from rmqcore.client import NoRouteError, Sql
from rmqcore.client.assignment import Start
from rmqcore.client.blocking import Admin, Consumer, Producer
from rmqcore.message import ReceivedMessage
from rmqcore.remoting import RequestRefusedError
from rmqcore.world import wall_clock_ms

Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="the topic", autocompletion=remote_topics)
]
#: The attributes of a `SendResult` that are printed.
_SHOWN = (
    "message_id",
    "offset_message_id",
    "topic",
    "broker_name",
    "queue_id",
    "queue_offset",
)
#: How often a consumer that ends at the end of its queues asks whether it is there.
_POLL_S = 0.1


class Mode(StrEnum):
    """Who gets a message of a group."""

    CLUSTERING = "clustering"
    BROADCASTING = "broadcasting"


def produce(
    topic: Topic,
    bodies: Annotated[
        list[str] | None,
        typer.Argument(metavar="BODY", help="bodies; without any, lines of standard input"),
    ] = None,
    namesrv: NameServer = DEFAULT_NAME_SERVER,
    group: Annotated[str, typer.Option("--group", "-g", help="producer group")] = "rmqcore-produce",
    tags: Annotated[str | None, typer.Option(help="filter tag")] = None,
    key: Annotated[list[str] | None, typer.Option(help="look-up key; repeatable")] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", help="NAME=VALUE; repeatable")
    ] = None,
    queue_id: Annotated[int | None, typer.Option(min=0, help="one queue, instead of all")] = None,
    delay_level: Annotated[int, typer.Option(min=0, help="level of messageDelayLevel")] = 0,
    deliver_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="deliver them then: 15m is in 15 minutes")
    ] = None,
    access_key: AccessKey = None,
    secret_key: SecretKey = None,
    tls: Tls = False,
    as_json: AsJson = False,
) -> None:
    """Send messages through a broker; prints where each is."""
    allowed = access(access_key, secret_key, tls)
    named = {name: str(value) for name, value in parse_settings(properties).items()}
    deliver_at_ms = parse_time_to_come(deliver_at)
    if deliver_at_ms is not None and deliver_at_ms <= wall_clock_ms():
        warn(f"{deliver_at} is over: the messages are delivered at once", as_json=as_json)
    count = 0
    with Producer(namesrv, group=group, acl=allowed.acl, tls=allowed.tls) as producer:
        for body in [text.encode() for text in bodies] if bodies else _lines():
            result = producer.send(
                topic,
                body,
                tags=tags,
                keys=key or (),
                properties=named,
                queue_id=queue_id,
                delay_level=delay_level,
                deliver_at_ms=deliver_at_ms,
            )
            count += 1
            if as_json:
                shown = {name: getattr(result, name) for name in _SHOWN}
                print_json(shown | {"status": result.status.name})
            else:
                where = f"{result.broker_name} {topic}/{result.queue_id}@{result.queue_offset}"
                typer.echo(cell_text(f"{result.message_id}  {where}"))
    if not as_json:
        note(f"{count} messages sent")


def _lines() -> Iterator[bytes]:
    for line in sys.stdin.buffer:
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def consume(
    topic: Topic,
    namesrv: NameServer = DEFAULT_NAME_SERVER,
    group: Annotated[str, typer.Option("--group", "-g", help="consumer group")] = "rmqcore-consume",
    tags: Annotated[str, typer.Option(help="'*', or tags: 'a || b'")] = "*",
    sql: Annotated[str | None, typer.Option(help="an SQL92 condition, instead of tags")] = None,
    start: Annotated[
        str,
        typer.Option(metavar="first|last|TIME", help="where a group begins that has read nothing"),
    ] = "last",
    mode: Annotated[Mode, typer.Option(help="who gets a message")] = Mode.CLUSTERING,
    orderly: Annotated[bool, typer.Option("--orderly", help="each queue in order")] = False,
    count: Annotated[int | None, typer.Option("--count", min=1, help="end after so many")] = None,
    at_end: Annotated[
        bool, typer.Option("--exit", "-e", help="end when all is read that was there at the start")
    ] = False,
    idle: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="end when nothing came for so long"),
    ] = None,
    access_key: AccessKey = None,
    secret_key: SecretKey = None,
    tls: Tls = False,
    long: Long = False,
    message_format: Annotated[str | None, typer.Option("--format", "-f", help=FORMAT_HELP)] = None,
    as_json: AsJson = False,
) -> None:
    """Print a topic's messages as they come, and settle each; until Ctrl-C.

    A new group begins behind the last message: --start first shows what is there. Exits with 1 when
    no message came.
    """
    allowed = access(access_key, secret_key, tls)
    begin = cast("Start", start if start in ("first", "last") else parse_time(start))
    show = printer(message_format, as_json=as_json, long=long)
    consumer = Consumer(
        namesrv,
        group,
        {topic: Sql(sql) if sql else tags},
        start=begin,
        mode=mode.value,
        orderly=orderly,
        acl=allowed.acl,
        tls=allowed.tls,
    )
    with Admin(namesrv, acl=allowed.acl, tls=allowed.tls) as admin:
        _warn_of_unknown(admin, topic, as_json=as_json)
    consumer.start()
    taken = 0
    with closing(consumer):
        if not as_json:
            note(f"rmqcore: {_waiting_for(topic, group, start, broadcasting=mode != 'clustering')}")
        for message in islice(_received(consumer, idle, at_end=at_end), count):
            show(message.stored)
            sys.stdout.flush()
            consumer.ack(message)
            taken += 1
    if not taken:
        other = f"; {group} goes on where it was, another group (-g) begins at --start"
        note(f"no message of {topic} came{other if mode == 'clustering' else ''}")
        raise typer.Exit(ExitCode.FINDINGS)


def _received(consumer: Consumer, idle: float | None, *, at_end: bool) -> Iterator[ReceivedMessage]:
    """The messages that come, up to where the queues end now, or until none comes for a while."""
    ends = consumer.queue_ends() if at_end else {}
    waited = 0.0
    while True:
        message = consumer.receive(_POLL_S if at_end else idle)
        if message is not None:
            waited = 0.0
            yield message
        elif not at_end or (idle is not None and waited >= idle):
            return
        else:
            waited += _POLL_S
        # a group that has just been joined may have no queue yet
        ends = ends or (consumer.queue_ends() if at_end else {})
        if ends and consumer.has_reached(ends):
            return


def _warn_of_unknown(admin: Admin, topic: str, *, as_json: bool) -> None:
    """Say that a topic is not there yet; who may not list topics hears no other name."""
    try:
        admin.route(topic)
    except NoRouteError:
        names: list[str] = []
        with suppress(RequestRefusedError):
            names = admin.topics()
        warn(
            f"no broker has the topic {topic}, waiting for it{near(topic, names)}", as_json=as_json
        )


def _waiting_for(topic: str, group: str, start: str, *, broadcasting: bool) -> str:
    begins = {
        "first": "the first message",
        "last": "what comes from now on (--start first shows what is there)",
    }.get(start, f"the messages of {start}")
    goes_on = "" if broadcasting else "where it was, or "
    return f"waiting for {topic} as group {group}; it begins {goes_on}with {begins}; Ctrl-C ends it"
