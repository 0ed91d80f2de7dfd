"""What a device is asked before a run begins."""

import jax
import numpy as np
import pytest

import jaxdp
from jaxdp import data, models
from jaxdp.runs._device import check_room


def test_features_that_the_memory_does_not_hold_are_refused_before_any_is_computed() -> None:
    device, images = jax.devices()[0], np.broadcast_to(np.uint8(0), (100_000_000, 64, 64, 3))  # which takes one byte
    model = models.classifier("scattering", data.Classes(10), input_shape=images.shape[1:], input_dtype=np.uint8)
    check_room(device, model, images[:10], fix="none")
    with pytest.raises(
        jaxdp.UsageError, match=r"scattering keeps 62,208 numbers of each of 100,000,010 inputs, 23,1.*: try"
    ):
        check_room(device, model, images, images[:10], fix="try fewer")
