"""``rmqcore produce`` and ``rmqcore consume``: messages to and from any RocketMQ."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from enum import StrEnum
from typing import Annotated, cast

import typer

from rmqcore.cli.failures import ExitCode
from rmqcore.cli.options import AsJson, Long, parse_settings, parse_time
from rmqcore.cli.output import NOTES, print_json, print_message
from rmqcore.cli.remote import (
    DEFAULT_NAME_SERVER,
    AccessKey,
    NameServer,
    SecretKey,
    Tls,
    access,
)
from rmqcore.client import Sql
from rmqcore.client.assignment import Start
from rmqcore.client.blocking import Consumer, Producer

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="the topic")]
#: The attributes of a `SendResult` that are printed.
_SHOWN = (
    "message_id",
    "offset_message_id",
    "topic",
    "broker_name",
    "queue_id",
    "queue_offset",
)


class Mode(StrEnum):
    """Who gets a message of a group."""

    CLUSTERING = "clustering"
    BROADCASTING = "broadcasting"


def produce(
    topic: Topic,
    bodies: Annotated[
        list[str] | None,
        typer.Argument(metavar="[BODY]...", help="bodies; without any, lines of standard input"),
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
        str | None, typer.Option(metavar="TIME", help="when to deliver it (timer wheel)")
    ] = None,
    access_key: AccessKey = None,
    secret_key: SecretKey = None,
    tls: Tls = False,
    as_json: AsJson = False,
) -> None:
    """Send messages through a broker; prints where each is."""
    allowed = access(access_key, secret_key, tls)
    named = {name: str(value) for name, value in parse_settings(properties).items()}
    deliver_at_ms = parse_time(deliver_at)
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
                typer.echo(f"{result.message_id}  {where}")
    if not as_json:
        NOTES.print(f"{count} messages sent")


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
        str, typer.Option(help="where a new group begins: first, last or a time")
    ] = "last",
    mode: Annotated[Mode, typer.Option(help="who gets a message")] = Mode.CLUSTERING,
    orderly: Annotated[bool, typer.Option("--orderly", help="each queue in order")] = False,
    count: Annotated[int | None, typer.Option("--count", min=1, help="end after so many")] = None,
    idle: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="end when nothing came for so long"),
    ] = None,
    access_key: AccessKey = None,
    secret_key: SecretKey = None,
    tls: Tls = False,
    long: Long = False,
    as_json: AsJson = False,
) -> None:
    """Print a topic's messages as they come, and settle each; until Ctrl-C.

    Exits with 1 when no message came.
    """
    allowed = access(access_key, secret_key, tls)
    begin = cast("Start", start if start in ("first", "last") else parse_time(start))
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
    consumer.start()
    taken = 0
    with closing(consumer):
        while taken != count and (message := consumer.receive(idle)) is not None:
            print_message(message.stored, as_json=as_json, long=long)
            sys.stdout.flush()
            consumer.ack(message)
            taken += 1
    if not taken:
        NOTES.print(f"no message of {topic} came", markup=False)
        raise typer.Exit(ExitCode.FINDINGS)
