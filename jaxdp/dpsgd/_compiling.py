"""Programs that are compiled beside whatever else goes on: XLA lets go of Python's lock while it compiles."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


def begin_to_compile(lowered: Any, options: Mapping[str, Any] | None = None) -> Future[Any]:
    """Compile what `jax.jit(...).lower(...)` gave in a thread of its own; the result is what `lowered.compile` gives."""
    thread = ThreadPoolExecutor(1)
    begun = thread.submit(lowered.compile, options)
    thread.shutdown(wait=False)
    return begun
