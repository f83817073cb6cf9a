"""Frames: RocketMQ's own bytes both ways, every refusal typed, memory bounded."""

import struct

import pytest
from children import peak_memory
from hypothesis import given
from hypothesis import strategies as st
from remoting.frames import COMMANDS, JAVA, SEEN, frame

from rmqcore.remoting import (
    FrameDecoder,
    FrameError,
    FrameLimits,
    FrameTooLargeError,
    LanguageCode,
    RemotingCommand,
    encode_command,
)

pytestmark = pytest.mark.logic

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
INT32 = st.integers(-(2**31), 2**31 - 1)
PLAIN = st.builds(
    RemotingCommand,
    code=st.integers(-32767, 32767),
    ext_fields=st.dictionaries(TEXT, TEXT, max_size=6),
    body=st.binary(max_size=60),
    remark=st.none() | TEXT.filter(bool),
    opaque=INT32,
    flag=st.integers(0, 3),
    version=st.integers(0, 32767),
    language=st.sampled_from(LanguageCode),
    serialize_type=st.sampled_from([0, 1]),
)
SMALL = FrameLimits(frame_size=4096, header_size=1024, field_count=8)


def encode(command, serialize_type=None):
    kind = command.serialize_type if serialize_type is None else serialize_type
    buffers, size = encode_command(command, kind)
    data = b"".join(buffers)
    assert len(data) == size
    return data


def decode(data, limits=None):
    """All commands of some bytes, which hold nothing else."""
    decoder = FrameDecoder(limits) if limits else FrameDecoder()
    decoder.feed(data)
    found = take(decoder)
    assert decoder.size == 0
    return found


def take(decoder):
    return list(iter(decoder.next, None))


@pytest.mark.parametrize("name", JAVA)
def test_a_frame_of_java_reads_as_what_it_was_made_of(name):
    assert decode(bytes.fromhex(JAVA[name])) == [COMMANDS[name]]


@pytest.mark.parametrize("name", JAVA)
def test_a_command_is_written_as_java_writes_it(name):
    assert encode(COMMANDS[name]).hex() == JAVA[name]


@pytest.mark.parametrize("header", SEEN)
def test_a_header_seen_on_the_wire_is_written_again_as_it_was(header):
    (command,) = decode(frame(header))
    assert command.version == 409
    assert sorted(encode(command)[8:].decode()) == sorted(header)


def test_members_that_are_missing_have_javas_values_and_unknown_ones_are_ignored():
    (command,) = decode(frame('{"code":34,"opaque":9,"news":[1,{"a":2}],"extFields":null}'))
    assert command == RemotingCommand(34, opaque=9, version=0, language=LanguageCode.JAVA)
    (command,) = decode(frame('{"code":34,"language":"COBOL"}'))
    assert command.language is LanguageCode.OTHER


def test_field_values_become_text():
    header = '{"code":1,"extFields":{"a":7,"b":true,"c":false,"d":null,"e":-1.5,"f":"x"}}'
    (command,) = decode(frame(header))
    assert command.ext_fields == {"a": "7", "b": "true", "c": "false", "e": "-1.5", "f": "x"}


def test_white_space_around_a_header_is_no_harm():
    assert decode(frame(' \n{"code": 7 } '))[0].code == 7


def test_codes_that_a_binary_header_cannot_hold_get_a_json_one():
    command = RemotingCommand(200050, serialize_type=1)
    assert encode(command)[4] == 0
    assert decode(encode(command))[0].code == 200050


def test_a_lone_surrogate_is_written_as_a_question_mark():
    (command,) = decode(frame('{"code":1,"remark":"a\\ud83d"}'))
    for kind in (0, 1):
        assert decode(encode(command, kind))[0].remark == "a?"


def test_parts_follow_the_body_and_are_not_copied():
    parts = [memoryview(b"one"), bytearray(b"two")]
    command = RemotingCommand(0, body=b"zero", parts=parts)
    buffers, _ = encode_command(command)
    assert all(a is b for a, b in zip(buffers[1:], [command.body, *parts], strict=True))
    assert decode(b"".join(buffers))[0].body == b"zeroonetwo"


@given(PLAIN)
def test_what_is_written_reads_the_same(command):
    if command.remark is not None and "\0" in command.remark:
        command.remark = command.remark.replace("\0", "0")
    assert decode(encode(command)) == [command]


@pytest.mark.engine
@given(st.lists(PLAIN, max_size=5), st.data())
def test_frames_may_come_in_any_pieces(commands, data):
    stream = b"".join(map(encode, commands))
    decoder, found = FrameDecoder(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        decoder.feed(stream[:size])
        stream = stream[size:]
        if data.draw(st.booleans()):
            found += take(decoder)
    assert found + take(decoder) == commands


BAD = {
    "no room for the type": b"\0\0\0\3",
    "negative": b"\xff\xff\xff\xff",
    "unknown type": frame("{}", kind=2),
    "header beyond the frame": b"\0\0\0\6\0\0\0\3{}",
    "not JSON": frame("{code:1}"),
    "no object": frame("[]"),
    "two objects": frame("{}{}"),
    "not UTF-8": frame(b'{"remark":"\xff"}'),
    "text as code": frame('{"code":"1"}'),
    "fraction as code": frame('{"code":1.0}'),
    "truth as code": frame('{"code":true}'),
    "33 bits": frame('{"opaque":2147483648}'),
    "NaN": frame('{"code":NaN}'),
    "a number of 5000 digits": frame('{"code":' + "9" * 5000 + "}"),
    "deep": frame("[" * 50_000),
    "fields no object": frame('{"extFields":["a"]}'),
    "nested field": frame('{"extFields":{"a":{"b":"c"}}}'),
    "number as remark": frame('{"remark":1}'),
    "number as language": frame('{"language":3}'),
    "binary too short": frame(bytes(20), kind=1),
    "binary remark too long": frame(bytes(13) + b"\0\0\0\1" + bytes(4), kind=1),
    "binary remark negative": frame(bytes(13) + b"\xff\xff\xff\xff" + bytes(4), kind=1),
    "binary fields too long": frame(bytes(17) + b"\0\0\0\1", kind=1),
    "binary fields too short": frame(bytes(17) + b"\0\0\0\1" + bytes(2), kind=1),
    "binary name negative": frame(bytes(17) + b"\0\0\0\6\xff\xff\0\0\0\0", kind=1),
    "binary value cut": frame(bytes(17) + b"\0\0\0\4\0\1k\0", kind=1),
    "binary name not UTF-8": frame(bytes(17) + b"\0\0\0\7\0\1\xff\0\0\0\0", kind=1),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_frame_is_refused(name):
    decoder = FrameDecoder()
    decoder.feed(BAD[name])
    with pytest.raises(FrameError):
        decoder.next()


def test_a_frame_up_to_the_limit_is_taken_and_a_larger_one_is_not():
    body = SMALL.frame_size - len(encode(RemotingCommand(0)))
    assert decode(encode(RemotingCommand(0, body=bytes(body))), SMALL)
    decoder = FrameDecoder(SMALL)
    decoder.feed(encode(RemotingCommand(0, body=bytes(body + 1)))[:4])
    with pytest.raises(FrameTooLargeError) as refusal:
        decoder.next()
    assert (refusal.value.size, refusal.value.limit) == (4097, 4096)
    with pytest.raises(FrameTooLargeError):
        encode_command(RemotingCommand(0, body=bytes(body + 1)), 0, SMALL)


@pytest.mark.parametrize("kind", [0, 1])
def test_header_size_and_fields_are_limited(kind):
    many = RemotingCommand(0, {str(number): "" for number in range(8)})
    assert decode(encode(many, kind), SMALL)
    many.ext_fields["8"] = ""
    with pytest.raises(FrameTooLargeError):
        decode(encode(many, kind), SMALL)
    with pytest.raises(FrameTooLargeError):
        decode(encode(RemotingCommand(0, {"a": "x" * 1024}), kind), SMALL)


@pytest.mark.parametrize("kind", [0, 1])
def test_a_command_that_no_frame_can_hold_is_refused(kind):
    with pytest.raises(FrameTooLargeError):
        encode_command(RemotingCommand(0, {"a": "x" * 2**24}), kind, FrameLimits(frame_size=2**30))
    if kind:
        with pytest.raises(FrameError):
            encode_command(RemotingCommand(0, opaque=2**31), kind)
        with pytest.raises(FrameTooLargeError):
            encode_command(RemotingCommand(0, {"n" * 32768: ""}), kind)


@pytest.mark.process
def test_announced_sizes_cost_no_memory():
    largest = FrameLimits().frame_size - 4
    head = struct.pack(">iI", largest, FrameLimits().header_size)

    def announce():
        decoders = [FrameDecoder() for _ in range(100)]
        for decoder in decoders:
            decoder.feed(head)
            assert decoder.next() is None

    assert peak_memory(announce) < 100_000


@pytest.mark.process
def test_what_was_taken_is_not_kept():
    data = encode(RemotingCommand(1, body=bytes(1000)))

    def feed():
        decoder = FrameDecoder()
        for _ in range(3000):
            decoder.feed(data[:700])
            decoder.next()
            decoder.feed(data[700:] + data[:300])
            assert decoder.next().code == 1
            decoder.feed(data[300:])
            assert decoder.next().code == 1
        assert decoder.size == 0

    assert peak_memory(feed) < 100_000


@pytest.mark.process
@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("directly", [False, True])
def test_the_first_byte_of_a_frame_keeps_nothing_of_the_one_before(pieces, directly):
    """`size`, by which connections are bounded, does not count it."""
    data = encode(RemotingCommand(1, body=bytes(1 << 20))) + b"\0"
    whole, size = memoryview(data), -(-len(data) // pieces)

    def feed():
        decoders = [FrameDecoder() for _ in range(20)]
        for decoder in decoders:
            for number in range(pieces):
                decoder.feed(bytes(whole[number * size : (number + 1) * size]))
            if directly:
                answers = decoder.answer_directly(lambda *_: (len(data) - 1, b"answers"), "peer")
                assert answers == b"answers"
            else:
                assert decoder.next().code == 1
            assert decoder.size == 1

    assert peak_memory(feed) < 8 << 20


def damaged(rng, data):
    data = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) or 1)
        kind = rng.randrange(5)
        if kind == 0 and data:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at : at + rng.randint(1, 9)]
        elif kind == 2:
            data[at:at] = rng.randbytes(rng.randint(1, 9))
        elif kind == 3:
            word = rng.choice([0, 1, 4, 2**15, 2**24 - 1, 2**31 - 1, 2**32 - 1])
            data[at : at + 4] = word.to_bytes(4, "big")
        else:
            data[at:at] = rng.choice([b'"', b"{", b"}", b"[", b"\\u", b"1e999", b"-", b","])
    return bytes(data)


def test_damaged_frames_give_commands_or_typed_refusals(rng):
    seeds = [bytes.fromhex(text) for text in JAVA.values()] + [frame(header) for header in SEEN]
    refused = 0
    for _ in range(6000):
        decoder = FrameDecoder(SMALL)
        for _ in range(rng.randint(1, 3)):
            decoder.feed(damaged(rng, rng.choice(seeds)))
        try:
            for command in take(decoder):
                assert all(type(value) is str for value in command.ext_fields.values())
                assert len(command.body) < SMALL.frame_size
                encode(command)
        except FrameError:
            refused += 1
    assert 1000 < refused < 6000


@given(st.binary(max_size=200), st.sampled_from([0, 1]))
def test_any_header_gives_a_command_or_a_typed_refusal(header, kind):
    decoder = FrameDecoder()
    decoder.feed(frame(header, b"body", kind))
    try:
        assert decoder.next().body == b"body"
    except FrameError:
        assert (header, kind) != (b"{}", 0)
