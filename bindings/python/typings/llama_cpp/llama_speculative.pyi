# The part of llama-cpp-python that the plug-in needs, so that its types are checked without the package.
import abc
from typing import Any

import numpy as np
import numpy.typing as npt

class LlamaDraftModel(abc.ABC):
    @abc.abstractmethod
    def __call__(self, input_ids: npt.NDArray[np.intc], /, **kwargs: Any) -> npt.NDArray[np.intc]: ...
