"""One of several processes that agree and disagree: its arguments are the coordinator's address, how many, and which it is."""

import sys
from collections.abc import Callable

import jax
import numpy as np

import jaxdp
from jaxdp import _processes
from jaxdp._errors import UsageError
from jaxdp._processes import agree, all_well, broadcast, from_first, gathered, is_first, on_first, several


def refused(call: Callable[[], object]) -> str:
    try:
        call()
    except UsageError as error:
        return str(error)
    raise AssertionError("nothing was refused")


def fails(where: int, message: str) -> bytes:
    if jax.process_index() == where:
        raise UsageError(message)
    return b"well"


def main(address: str, processes: int, own: int) -> None:
    jax.distributed.initialize(address, processes, own)
    assert several()
    assert is_first() == (own == 0)
    agree({"seed": "7", "data": b"\x00\x01"})
    assert gathered(b"x" * own) == [b"x" * i for i in range(processes)]
    assert broadcast(bytes(range(256)) if own == 0 else b"") == bytes(range(256))
    _processes._AT_ONCE = 100  # bytes, of which there are several pieces then
    for lengths in ((0, 0, 0), (250, 0, 100), (99, 301, 1)):
        contents = [bytes([i + 1]) * length for i, length in enumerate(lengths)][:processes]
        assert gathered(contents[own]) == contents
        assert broadcast(contents[own]) == contents[0]
    assert from_first(lambda: b"of the first") == b"of the first"
    assert on_first(lambda: own) == (0 if own == 0 else None)
    assert refused(lambda: from_first(lambda: fails(0, "no room"))).endswith("no room")
    assert refused(lambda: all_well(lambda: fails(1, "no data"))) == ("" if own == 1 else "process 1: ") + "no data"
    assert all_well(lambda: str(own).encode()) == str(own).encode()
    assert "same_in_all_processes=True" in refused(jaxdp.key_from_entropy)
    words = np.asarray(jax.random.key_data(jaxdp.key_from_entropy(same_in_all_processes=True))).tobytes()
    assert gathered(words) == [words] * processes
    print(refused(lambda: agree({"seed": str(own), "options": "same", "data": str(own // 2)})))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
