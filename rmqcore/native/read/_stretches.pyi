import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

def read_stretches(
    fd: int, file_start: int, stretches: Buffer | NDArray[np.int64], into: Buffer
) -> int: ...
