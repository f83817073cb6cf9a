"""What is put and what is read: `Message`, `MessageExt` and the receipts.

Floor: F1; imports _message, _get_result, _key_query, _codec.
"""

from rmqcore._codec import decode_message_id, encode_message_id
from rmqcore._get_result import GetMessageResult
from rmqcore._key_query import QueryMessageResult
from rmqcore._message import Message, MessageExt, PutMessageResult

__all__ = [
    "GetMessageResult",
    "Message",
    "MessageExt",
    "PutMessageResult",
    "QueryMessageResult",
    "decode_message_id",
    "encode_message_id",
]
