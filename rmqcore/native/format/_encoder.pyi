from typing import final

@final
class RecordEncoder:
    @property
    def culprit(self) -> object: ...
