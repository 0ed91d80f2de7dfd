"""Numbers of two programs that add up the same: alike to the bit, where both are compiled as users have them compiled."""

import os
from typing import Any

import numpy as np

AS_USUAL = "--xla_cpu_use_fusion_emitters=false" not in os.environ.get("XLA_FLAGS", "")
"""Whether XLA is: fast tests on JAX 0.10 have it compile in another way, which rounds one sum differently in two programs."""


def assert_same_numbers(ours: Any, theirs: Any) -> None:
    """That two arrays, or numbers, are the same to the bit; to rounding where they are not compiled as usual."""
    if AS_USUAL:
        np.testing.assert_array_equal(ours, theirs)
    else:
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
