"""Host addresses as records hold them: 8 bytes of IPv4 or 20 of IPv6.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int32_t, uint8_t, uint32_t

from rmqcore.native.format._bytes cimport load_i32
from rmqcore.native.format._layout cimport HOST_V4_SIZE, HOST_V6_SIZE
from rmqcore.native.format._record cimport bytes_t

from rmqcore.errors import MessageIllegalError

cdef extern from "<arpa/inet.h>" nogil:
    enum: AF_INET
    enum: AF_INET6
    enum: INET6_ADDRSTRLEN
    int inet_pton(int family, const char* text, void* address)
    const char* inet_ntop(int family, const void* address, char* text, uint32_t size)


cdef str host_text(bytes_t at, int32_t size):
    if size == HOST_V4_SIZE:
        return f"{at[0]}.{at[1]}.{at[2]}.{at[3]}:{load_i32(at + 4)}"
    cdef char address[INET6_ADDRSTRLEN]
    if size != HOST_V6_SIZE:
        return ""
    inet_ntop(AF_INET6, at, address, INET6_ADDRSTRLEN)
    return f"[{(<bytes>address).decode('ascii')}]:{load_i32(at + 16)}"


cdef bytes packed_address(int family, str address):
    """The 4 or 16 bytes of a numeric address.

    Raises:
        ValueError: it is none.
    """
    cdef uint8_t packed[16]
    cdef bytes text = address.encode("ascii")
    if 0 in text or inet_pton(family, PyBytes_AS_STRING(text), packed) != 1:
        raise ValueError(address)
    return (<char*>packed)[:4 if family == AF_INET else 16]


def decode_host(bytes host not None) -> str:
    """Text of an encoded host: ``10.1.2.3:10911`` or ``[2001:db8::1]:10911``.

    Args:
        host: 8 bytes (IPv4) or 20 bytes (IPv6): the address, then the port as int32.

    Raises:
        ValueError: any other length.

    Source: RocketMQ common/message/MessageExt.java, socketAddress2ByteBuffer.
    """
    if len(host) not in (HOST_V4_SIZE, HOST_V6_SIZE):
        raise ValueError(f"an encoded host has 8 or 20 bytes, not {len(host)}")
    return host_text(<bytes_t>PyBytes_AS_STRING(host), <int32_t>len(host))


def encode_host(str host not None) -> bytes:
    """The 8 or 20 bytes of a host; an IPv4-mapped IPv6 address becomes IPv4, as in Java.

    Raises:
        MessageIllegalError: not ``address:port`` with a numeric address and a port of 0 to 65535.

    Source: RocketMQ common/message/MessageExt.java, socketAddress2ByteBuffer.
    """
    address, _, port = host.rpartition(":")
    try:
        if address.startswith("[") and address.endswith("]"):
            bare = address.removeprefix("[").removesuffix("]").partition("%")[0]
            packed = packed_address(AF_INET6, bare)
            if packed.startswith(b"\0" * 10 + b"\xff\xff"):
                packed = packed[12:]
        else:
            packed = packed_address(AF_INET, address)
        number = int(port)
    except ValueError:
        number = -1
    if not 0 <= number <= 65535:
        raise MessageIllegalError(
            f"host {host!r}: expected a numeric address and a port, such as '10.1.2.3:10911' "
            "or '[2001:db8::1]:10911'"
        )
    return packed + number.to_bytes(4, "big")
