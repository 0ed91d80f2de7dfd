"""The attacks on what a model predicts, by name."""

from typing import Literal

Attack = Literal["loss", "entropy", "modified-entropy"]
