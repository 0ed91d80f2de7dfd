"""One of several processes that agree and disagree: its arguments are the coordinator's address, how many, and which it is."""

import sys
from collections.abc import Callable

import jax

from jaxdp._errors import UsageError
from jaxdp._processes import agree, from_first, gathered, is_first, several, together


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
    assert from_first(lambda: b"of the first") == b"of the first"
    assert refused(lambda: from_first(lambda: fails(0, "no room"))).endswith("no room")
    assert refused(lambda: together(lambda: fails(1, "no data"))) == ("" if own == 1 else "process 1: ") + "no data"
    assert together(lambda: str(own).encode()) == [str(i).encode() for i in range(processes)]
    print(refused(lambda: agree({"seed": str(own), "options": "same", "data": str(own // 2)})))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
