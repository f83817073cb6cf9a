"""MetaQ's records and partitions in plain Python, written from docs/metaq.md: slow and obvious."""

import struct
import zlib

HEADER = struct.Struct(">iiqi")
ZEROS = bytes(HEADER.size)


def checksum(data):
    return zlib.crc32(data) & 0x7FFFFFFF


def encode(message_id, data, flag=0):
    return HEADER.pack(len(data), checksum(data), message_id, flag) + data


def record_at(buffer, at):
    """(end, message_id, flag, data) of the record at a position, or None when there is none."""
    if len(buffer) - at < HEADER.size or buffer[at : at + HEADER.size] == ZEROS:
        return None
    length, crc, message_id, flag = HEADER.unpack_from(buffer, at)
    begin = at + HEADER.size
    if length < 0 or begin + length > len(buffer):
        return None
    data = bytes(buffer[begin : begin + length])
    return (begin + length, message_id, flag, data) if checksum(data) == crc else None


def walk(buffer):
    """Every whole record from the beginning: ([(at, message_id, flag, data)], valid_up_to)."""
    found, at = [], 0
    while (record := record_at(buffer, at)) is not None:
        end, message_id, flag, data = record
        found.append((at, message_id, flag, data))
        at = end
    return found, at


def recoverable(buffer):
    """How much a recovery keeps: records without data count only before whole ones or the end."""
    rows, end = walk(buffer)
    while end < len(buffer) and rows and not rows[-1][3]:
        end = rows.pop()[0]
    return len(rows), end


def split(data, flag):
    """(attribute or None, payload) of a record's data; ValueError when they do not fit."""
    if not flag & 1:
        return None, data
    if len(data) < 4:
        raise ValueError(data)
    size = int.from_bytes(data[:4], "big", signed=True)
    if size < 0 or size > len(data) - 4:
        raise ValueError(data)
    return data[4 : 4 + size], data[4 + size :]


class Partition:
    """A partition as lists of bytes: start -> content, and how much of it is on disk."""

    def __init__(self, max_segment_size, start=0):
        self.max_segment_size = max_segment_size
        self.segments = [[start, b""]]
        self.durable = start

    @property
    def end(self):
        start, content = self.segments[-1]
        return start + len(content)

    def append(self, rows):
        offset = self.end
        added = b"".join(encode(*row) for row in rows)
        self.segments[-1][1] += added
        return offset, len(added)

    def flush(self):
        self.durable = self.end

    def roll_if_full(self):
        if len(self.segments[-1][1]) >= self.max_segment_size:
            self.flush()
            self.segments.append([self.end, b""])

    def delete_oldest(self):
        if len(self.segments) > 1:
            del self.segments[0]

    def recover(self):
        """What is left after a stop: the newest segment up to its first bad record."""
        _, content = self.segments[-1]
        _, valid = recoverable(content)
        self.segments[-1][1] = content[:valid]
        self.durable = self.end

    def slice(self, offset, size):
        """Bytes, None at or behind the durable end, "small" before the first segment."""
        if offset >= self.durable:
            return None
        if offset < self.segments[0][0]:
            return "small"
        for start, content in reversed(self.segments):
            if offset >= start:
                limit = min(start + len(content), self.durable) - start
                return content[offset - start : min(offset - start + size, limit)]
        raise LookupError(offset)

    def nearest(self, offset):
        if offset >= self.durable:
            return self.durable
        for start, _ in reversed(self.segments):
            if offset >= start:
                return start
        return self.segments[0][0]

    def messages(self):
        rows = []
        for start, content in self.segments:
            found, _ = walk(content[: max(0, self.durable - start)])
            rows += [(start + at, i, flag, data) for at, i, flag, data in found]
        return rows
