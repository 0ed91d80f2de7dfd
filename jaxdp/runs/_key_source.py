"""Where a command's keys come from: the operating system's entropy, or a seed with everything that describes the run.

A seed repeats a run and never couples two. Keys follow by SHA-256 from the seed, the options, the plan, the fold, what was
spent before with its nonces, the data, people held back and the canaries in them, so that a run that differs in any of them
(where it runs and lies, the microbatch size, the versions of packages, and the code of a model of one's own are none of them)
draws other batches and other noise: the difference of two models, or one model on two neighbouring data sets, never comes
without noise. A seed has 32 bits all the same, few enough to try them all; what a run is to hide it draws from the operating
system.
"""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key

from ..noise import key_from_entropy
from ..noise._keys import key_of_bytes


@dataclass(frozen=True)
class KeySource:
    """The keys of one run.

    Attributes:
        seed: what the user gave; None for the operating system's entropy, of which nothing below is a function.
        described: everything that describes the run but for its data, in JSON.
        fingerprint: of what the run reads of the data, under a secret: `jaxdp.data.Fingerprints`.
        entropy: without a seed, 32 bytes of the operating system's for this run alone, from which keys follow; given where
            several processes are to have the same, or one that goes on the same again, and else drawn for each key.
    """

    seed: int | None
    described: Any
    fingerprint: Callable[[bytes], str]
    entropy: bytes | None = field(default=None, repr=False)

    def key(self, purpose: str) -> Key[Array, ""]:
        """The key for that purpose; two of them have nothing in common."""
        if self.seed is None:
            return self._key_from_entropy(purpose)
        return key_of_bytes(self._material + self._data + purpose.encode())

    def public_key(self, purpose: str) -> Key[Array, ""]:
        """The same for draws that are published as they are: no function of the data even to whoever knows the seed."""
        if self.seed is None:
            return self._key_from_entropy(f"{purpose}, published")
        return key_of_bytes(self._material + purpose.encode())

    def nonce(self, purpose: str) -> str:
        """A name for what is drawn for that purpose, 32 hexadecimal digits: it is published, so it is no function of the data."""
        if self.seed is None:
            own = os.urandom(32) if self.entropy is None else self.entropy
            return hashlib.sha256(own + f"nonce, {purpose}".encode()).hexdigest()[:32]
        # Slowly, so that a published nonce doesn't let anyone try all seeds in no time.
        return hashlib.scrypt(self._material + purpose.encode(), salt=b"jaxdp nonce", n=2**14, r=8, p=1, dklen=16).hex()

    def secret_for(self, purpose: str) -> bytes | None:
        """32 bytes for the keys of a part that is a run itself; None with a seed, of which a part has one of its own."""
        if self.seed is not None or self.entropy is None:
            return None
        return hashlib.sha256(self.entropy + f"secret, {purpose}".encode()).digest()

    def _key_from_entropy(self, purpose: str) -> Key[Array, ""]:
        if self.entropy is None:
            return key_from_entropy(same_in_all_processes=False)
        return key_of_bytes(self.entropy + f"key, {purpose}".encode())

    @cached_property
    def _material(self) -> bytes:
        content = json.dumps([self.seed, self.described], sort_keys=True)
        return hashlib.sha256(content.encode()).digest()

    @cached_property
    def _data(self) -> bytes:
        return bytes.fromhex(self.fingerprint(self._material))

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """Those under which keys will ask for the data's fingerprint: one with a seed, none without."""
        return () if self.seed is None else (self._material,)


def nonce_as_words(nonce: str) -> jax.Array:
    """A nonce as a training state holds it, uint32 [4]."""
    return jax.numpy.asarray(np.frombuffer(bytes.fromhex(nonce), ">u4").astype(np.uint32))
