"""Keys that nobody can guess, one key in two places without the same words, and names for keys that tell nothing.

Whatever takes a key derives its words through a `Domain` of its own: a key that was handed to a sampler and to `jaxdp.privatize`
alike says nothing about the noise by who was drawn.
"""

import enum
import functools
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.extend.core import get_opaque_trace_state
from jaxtyping import Array, Key, UInt32

from .. import _checks
from .._errors import UsageError
from .._processes import from_first, several


@enum.unique
class Domain(enum.IntEnum):
    """A use of a key: a number that is folded into it before anything else is derived.

    With JAX's default generator, key i of `jax.random.split(key, n)` is `jax.random.fold_in(key, i)`. So these numbers are taken
    from the 256 below 2^31: no step, epoch, row or part of a split that anyone derives a key by is numbered so high, for those
    are counted from 0 and arrays or loops of 2^31 - 256 are out of reach. Numbers of one domain are folded into its own key, one
    level deeper. Two domains differ in their number, so that words coincide as those of two random keys do.
    """

    QUANTILE = 2**31 - 1
    NEXT_RUN = 2**31 - 2
    TABLE_BOUNDS = 2**31 - 3
    RUN = 2**31 - 4
    POISSON_SAMPLER = 2**31 - 5
    TRUNCATED_POISSON_SAMPLER = 2**31 - 6
    SHUFFLED_SAMPLER = 2**31 - 7
    LOSS = 2**31 - 8
    PRIVATIZE = 2**31 - 9
    NORMAL = 2**31 - 10
    TREE_NORMAL = 2**31 - 11
    LAPLACE = 2**31 - 12
    LAPLACE_MECHANISM = 2**31 - 13
    GAUSSIAN_MECHANISM = 2**31 - 14
    RANDOMIZED_RESPONSE = 2**31 - 15
    EXPONENTIAL = 2**31 - 16
    REPORT_NOISY_MAX = 2**31 - 17
    MEAN = 2**31 - 18
    HISTOGRAM = 2**31 - 19
    SHARDS = 2**31 - 20
    TEACHERS = 2**31 - 21
    AGGREGATE = 2**31 - 22
    RELEASE = 2**31 - 23
    STUDENT = 2**31 - 24
    DISTORTED = 2**31 - 25
    ERASED = 2**31 - 26
    AUGMENTED = 2**31 - 27
    CANARIES = 2**31 - 28
    SHADOWS = 2**31 - 29
    MULTIPLICATIVE_WEIGHTS = 2**31 - 30
    SYNTHETIC_ROWS = 2**31 - 31


def own_key(key: Key[Array, "*shape"], domain: Domain) -> Key[Array, "*shape"]:
    """The key of a domain: nothing else is derived from `key` by that number."""
    return jax.random.fold_in(key, domain.value)


def key_from_entropy(*, same_in_all_processes: bool | None = None) -> jax.Array:
    """A JAX key that holds 64 bits of the operating system's entropy, as many as Threefry takes.

    `jax.random.key(seed)` reads only 32 bits of a seed (64 with x64 enabled): few enough to try them all, and whoever
    finds the seed can subtract the noise. This fills the whole key instead.

    Args:
        same_in_all_processes: to be said after `jax.distributed.initialize`. True: the first one's key in all, for one run of all
            processes, whose sum gets one noise; each of them calls this, as a collective operation. False: one of its own in
            each, for runs of their own, of which two mustn't have the same noise.

    Returns:
        A scalar key array of the generator "threefry2x32", whichever is JAX's default.

    Raises:
        UsageError: in several processes, where it isn't said whose key it is; within `jax.jit`, `jax.vmap`, a loop of JAX's or
            whatever else traces: the key would become a constant of the program, or one for all copies.
    """
    if _trace_state() != _untraced():
        raise UsageError(
            "key_from_entropy is called within a function that JAX traces (jax.jit, jax.vmap, jax.lax.scan or map): it would be "
            "drawn once, and every call and every step would get the same noise, so that their difference has none. Make the key "
            "outside and hand it over as an argument, or as many as there are steps or copies by jax.random.split"
        )
    if same_in_all_processes is not None:
        same_in_all_processes = _checks.flag("same_in_all_processes", same_in_all_processes)
    elif several():
        raise UsageError(
            f"key_from_entropy is called in one of {jax.process_count()} processes, each with a key of its own: sums of "
            "all of them would be released under several noises, which average out. Give same_in_all_processes=True, in each of "
            "them, for one run of all; or False for a run of this process alone"
        )
    return key_of_bytes(from_first(lambda: os.urandom(64)) if same_in_all_processes else os.urandom(64))


def _trace_state() -> Any:
    """Which transformation of JAX's is at work, also `jax.vmap`, within which what depends on no argument is no tracer."""
    return get_opaque_trace_state(convention="nnx")


@functools.cache
def _untraced() -> Any:
    """The same where none is, as in a thread that has only begun."""
    with ThreadPoolExecutor(1) as fresh:
        return fresh.submit(_trace_state).result()


def key_of_bytes(material: bytes) -> Key[Array, ""]:
    """A key whose every bit follows from `material`, by SHA-256."""
    words = np.frombuffer(hashlib.sha256(b"jaxdp key:" + material).digest(), np.uint32, count=2)
    return jax.random.wrap_key_data(jax.numpy.asarray(words), impl=_checks.THREEFRY)


def nonce_of(key: Key[Array, ""]) -> UInt32[Array, "4"]:
    """A name for what is drawn from a key, the same for the same key: 128 bits of a SHA-256, from which the key can't be found.

    Under a transformation, where the key's words aren't known yet, the host is asked for it when they are.
    """
    label = f"jaxdp nonce:{jax.random.key_impl(key)}:".encode()

    def digest(words: Any) -> np.ndarray:
        found = hashlib.sha256(label + np.asarray(words, ">u4").tobytes()).digest()
        return np.frombuffer(found, ">u4", count=4).astype(np.uint32)

    words = jax.random.key_data(key)
    if isinstance(words, Tracer):
        shape = jax.ShapeDtypeStruct((4,), np.uint32)
        return jax.pure_callback(digest, shape, words, vmap_method="sequential")
    return jax.numpy.asarray(digest(np.asarray(words)))


def nonce_in_hex(nonce: UInt32[Array | np.ndarray, "4"]) -> str:
    """How a ledger writes a nonce: 32 hexadecimal digits."""
    return np.asarray(nonce, ">u4").tobytes().hex()
