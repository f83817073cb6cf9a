from typing_extensions import Buffer, disjoint_base

from rmqcore.remoting import FrameLimits, LaterAnswers

@disjoint_base
class DirectRequests:
    def answer(
        self, buffer: Buffer, at: int, limits: FrameLimits, peer: str
    ) -> tuple[int, bytes | LaterAnswers]: ...
