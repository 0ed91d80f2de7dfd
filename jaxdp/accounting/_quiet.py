"""Warnings of dp-accounting that say nothing to those who asked."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_about_skipped_orders() -> Iterator[None]:
    """dp-accounting warns of fractional orders whose series doesn't converge; it leaves them out, which is safe."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
