from typing import Self, final

@final
class TopicEntry:
    def __new__(cls, name: bytes) -> Self: ...

@final
class TopicTable: ...

@final
class Numbering: ...
