"""jaxdp: differentially private deep learning in JAX.

A loss for one example goes in; the sum of clipped per-example gradients, noise inside an optax transform, batches drawn as
the accountant assumes, and an epsilon that is true of the run come out.

    run = jaxdp.DPSGD(num_examples=60_000, expected_batch_size=256, steps=3600, clip_norm=1.0, noise_multiplier=1.1)
    step = run.make_step(loss_fn, optax.sgd(0.5))
    state = step.init(params, jaxdp.key_from_entropy())
    for _ in range(run.steps):
        state, metrics = step(state, data)
    print(run.statement(delta=1e-5))
"""

from typing import Any as _Any

import lazy_loader

from . import _interrupts as _interrupts
from ._elsewhere import elsewhere as _elsewhere

_own, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> _Any:
    if instead := _elsewhere(name):  # an import of the name passes on an ImportError, unlike an AttributeError
        raise ImportError(f"jaxdp has no {name}: {instead}")
    return _own(name)
