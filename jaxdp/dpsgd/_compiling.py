"""How programs are compiled: those that run often for speed, others beside whatever else goes on.

XLA lets go of Python's lock while it compiles.
"""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import jax

from .._platform import CPU, compiler_options, default_platform


def jit_to_run_often(fn: Callable[..., Any], **how: Any) -> Any:
    """`jax.jit(fn, **how)`, compiled as suits the default device."""
    return jax.jit(fn, compiler_options=compiler_options(), **how)


def is_beside() -> bool:
    """Whether compiling goes on beside other work: a CPU's compiler takes all cores by itself."""
    return default_platform() is not CPU


def begin_to_compile(lowered: Any, options: Mapping[str, Any] | None = None) -> Future[Any]:
    """Compile what `jax.jit(...).lower(...)` gave, in a thread of its own where that is of use; the result is the program."""
    begun = Future[Any]()

    def compiled() -> None:
        try:
            begun.set_result(lowered.compile(options))
        except BaseException as error:  # whoever asks for the result gets it
            begun.set_exception(error)

    if is_beside():
        with suppress(RuntimeError):  # no thread can be begun, as while the interpreter ends
            threading.Thread(target=compiled).start()
            return begun
    compiled()
    return begun
