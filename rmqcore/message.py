"""The message classes under their public names: `Message`, `MessageExt` and the receipts."""

from rmqcore._codec import decode_message_id, encode_message_id
from rmqcore.native.format._message import Message, MessageExt
from rmqcore.native.format._receipt import PutMessageResult
from rmqcore.native.read._get_result import GetMessageResult
from rmqcore.native.read._key_query import QueryMessageResult

__all__ = [
    "GetMessageResult",
    "Message",
    "MessageExt",
    "PutMessageResult",
    "QueryMessageResult",
    "decode_message_id",
    "encode_message_id",
]
