"""The noises of this package: one line for each, by which a description in JSON is read back."""

from typing import Any

from ._gaussian import Gaussian

NOISES: tuple[type[Any], ...] = (Gaussian,)
