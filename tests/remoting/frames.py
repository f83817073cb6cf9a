"""Frames that Apache RocketMQ has written, and what is in them.

`JAVA` was made with RemotingCommand.encode of 5.5.0 and of 4.9.7, which write the same;
`SEEN` are headers that were seen between released clients, brokers and name servers.
"""

from rmqcore.remoting import LanguageCode, RemotingCommand

JAVA = {
    "json": (
        "000000c6000000be7b22636f6465223a3331302c226578744669656c6473223a7b2261223a2247c3a4222c22"
        "69223a224b4559535c75303030316b5c7530303032222c2265223a222d31227d2c22666c6167223a302c226c"
        "616e6775616765223a224a415641222c226f7061717565223a2d372c2272656d61726b223a2272c3bc205c22"
        "715c22205c5c205c6e20e4b896f09f9880222c2273657269616c697a655479706543757272656e7452504322"
        "3a224a534f4e222c2276657273696f6e223a3430317d62006479"
    ),
    "binary": (
        "00000051010000490136000191fffffff9000000000000001372c3bc20227122205c200a20e4b896f09f9880"
        "000000210001610000000347c3a4000169000000074b455953016b02000165000000022d3162006479"
    ),
    "bare": (
        "000000630000005f7b22636f6465223a302c22666c6167223a312c226c616e6775616765223a224a41564122"
        "2c226f7061717565223a352c2273657269616c697a655479706543757272656e74525043223a224a534f4e22"
        "2c2276657273696f6e223a3430317d"
    ),
    "oneway": ("0000001901000015002200019100000006000000020000000000000000"),
    "field": ("000000220100001e0022000000000000070000000100000001720000000800016b0000000176"),
}

_FIELDS = {"a": "Gä", "i": "KEYS\x01k\x02", "e": "-1"}
_REMARK = 'rü "q" \\ \n 世😀'
_JAVA_401 = {"version": 401, "language": LanguageCode.JAVA}
COMMANDS = {
    "json": RemotingCommand(310, _FIELDS, b"b\0dy", _REMARK, opaque=-7, **_JAVA_401),
    "binary": RemotingCommand(
        310, _FIELDS, b"b\0dy", _REMARK, opaque=-7, serialize_type=1, **_JAVA_401
    ),
    "bare": RemotingCommand(0, opaque=5, flag=1, **_JAVA_401),
    "oneway": RemotingCommand(34, opaque=6, flag=2, serialize_type=1, **_JAVA_401),
    "field": RemotingCommand(
        34,
        {"k": "v"},
        b"",
        "r",
        opaque=7,
        flag=1,
        version=0,
        language=LanguageCode.JAVA,
        serialize_type=1,
    ),
}

SEEN = (
    '{"code":105,"extFields":{"topic":"TBW102"},"flag":0,"language":"JAVA","opaque":1,'
    '"serializeTypeCurrentRPC":"JSON","version":409}',
    '{"code":103,"extFields":{"brokerAddr":"127.0.0.1:21911","brokerId":"0",'
    '"brokerName":"broker-t","bodyCrc32":"1936915573","clusterName":"DefaultCluster",'
    '"compressed":"false","haServerAddr":"192.0.2.2:21912"},"flag":0,"language":"JAVA",'
    '"opaque":2,"serializeTypeCurrentRPC":"JSON","version":409}',
)


def frame(header: bytes | str, body: bytes = b"", kind: int = 0) -> bytes:
    """Put a frame around a header, whatever it is."""
    header = header.encode() if isinstance(header, str) else header
    length = 4 + len(header) + len(body)
    return (
        length.to_bytes(4, "big") + bytes([kind]) + len(header).to_bytes(3, "big") + header + body
    )
