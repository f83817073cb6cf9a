from typing import final

@final
class PublishedOffset:
    def move_to(self, offset: int) -> None: ...
    @property
    def offset(self) -> int: ...
