"""Steps that need more memory than there is, of this machine's own memory: nothing is pretended."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp
from jaxdp.commands.train._room import check_microbatch, memory_explained
from jaxdp.runs._device import memory_of
from jaxdp.runs._devices import Devices

PARAMS = {"wide": jnp.ones(2**16), "end": jnp.ones(2**16)}
DATA = (np.ones((8, 1), np.float32), np.zeros(8, np.int32))
GO_ON = "jaxdp train --resume runs/here"
TOO_MANY = 2**24  # of 256 KiB and more each


def loss(params: Any, example: Any) -> Any:
    hidden = jnp.tanh(params["wide"] * example[0])
    return jnp.sum(jnp.tanh(hidden * params["end"])), jnp.float32(0)


def devices() -> Devices:
    return Devices((jax.devices()[0],))


@pytest.mark.slow
def test_a_microbatch_beyond_memory_is_refused_with_one_that_fits(unchecked: None) -> None:
    with pytest.raises(jaxdp.UsageError, match=re.escape(f"--microbatch-size={TOO_MANY} needs")) as refused:
        check_microbatch(loss, PARAMS, DATA, TOO_MANY, devices(), GO_ON)
    (fits,) = re.findall(re.escape(GO_ON) + r" --microbatch-size (\d+)$", str(refused.value))
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((int(fits), *leaf.shape[1:]), leaf.dtype), DATA)
    (needed,) = jaxdp.dpsgd.step_memory(
        loss, PARAMS, batch, methods=("auto",), microbatch_sizes=(int(fits),), has_aux=True
    )
    room = memory_of(devices().own)
    assert room is not None
    assert needed.temporary_bytes < room
    check_microbatch(loss, PARAMS, DATA, int(fits), devices(), GO_ON)


def test_no_microbatch_and_a_usual_one_are_not_asked_about(unchecked: None) -> None:
    check_microbatch(loss, PARAMS, DATA, None, devices(), GO_ON)
    check_microbatch(loss, PARAMS, DATA, 1, devices(), GO_ON)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("private", "said"), [(True, GO_ON + " --microbatch-size "), (False, "another run with a smaller --batch-size")]
)
def test_memory_that_is_exhausted_is_told_with_what_to_do(private: bool, said: str, unchecked: None) -> None:
    with (
        pytest.raises(jaxdp.UsageError, match="no memory left .*RESOURCE_EXHAUSTED") as refused,
        memory_explained(loss, PARAMS, DATA, 64, devices(), GO_ON, private=private),
    ):
        jax.block_until_ready(jnp.zeros((2**20, 2**28), jnp.float32))  # a pebibyte
    assert said in str(refused.value)


def test_other_errors_of_a_step_are_not_taken_for_it() -> None:
    with pytest.raises(ZeroDivisionError), memory_explained(loss, PARAMS, DATA, 64, devices(), GO_ON, private=True):
        raise ZeroDivisionError
