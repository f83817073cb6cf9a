"""The names of a send header's fields: long in request 10, a letter each in 310 and 320."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_LONG_NAMES: Final = (
    *("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag"),
    *("bornTimestamp", "flag", "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes"),
    "batch",
)
#: The letter of each long name. Source: SendMessageRequestHeaderV2.
SEND_LETTERS: Final = dict(zip(_LONG_NAMES, "abcdefghijklm", strict=True))


def under_letters(fields: Mapping[str, str]) -> dict[str, str]:
    """The header of a send of 310 or 320, whose fields are given by their long names."""
    return {SEND_LETTERS[name]: value for name, value in fields.items()}
