"""Teachers of one process alone, or of one of several: its arguments are a file for them, and the coordinator's address, how many
processes there are, and which one it is."""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from small_teachers import OPTIMIZER, init, logits, loss, records, trained

from jaxdp import UsageError
from jaxdp.pate._teachers import Ensemble

OF_SEVERAL = __name__ == "__main__" and len(sys.argv) > 2
if OF_SEVERAL:  # before anything is computed
    jax.distributed.initialize(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))

TEACHERS = 5  # which two processes can't halve
LATER = (4, 1, 2)


def arrays_of(**changes: Any) -> dict[str, np.ndarray]:
    """All that comes out: parameters, shards, predictions, and the parameters of some teachers trained by themselves."""
    teachers = trained(num_teachers=TEACHERS, **changes)
    given = (loss, init, records(), TEACHERS, OPTIMIZER, 2, 4, jax.random.key(1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of classes that such small shards miss
        later = [jax.tree.leaves(part)[0] for part in Ensemble(*given).train(LATER)]
    found = {f"params {i}": leaf for i, leaf in enumerate(jax.tree.leaves(teachers.params))}
    predictions = teachers.predict(logits, records(40)[0])
    return {**found, "shards": teachers.shards, "predictions": predictions, "later": np.concatenate(later)}


def refused(call: Callable[[], Any]) -> None:
    try:
        call()
    except UsageError as error:
        print(error)
    else:
        raise AssertionError("nothing was refused")


def disagree() -> None:
    """The processes want what isn't one ensemble, and each says what it is told."""
    own, (inputs, labels) = jax.process_index(), records()
    other = inputs.copy()
    other[22 - own, 0, 0, 0] += 1e-3
    refused(lambda: trained(key=jax.random.key(own)))
    refused(lambda: trained((other, labels)))
    refused(lambda: trained(num_teachers=4 + own))
    refused(lambda: trained(epochs=2 + own))
    refused(lambda: trained(batch_size=4 + 100 * own))
    refused(lambda: trained(optimizer=[OPTIMIZER, optax.sgd(0.1)][own]))


def main(file: Path) -> None:
    heard: list[int] = []
    np.savez(file, **arrays_of(on_progress=heard.append))
    at_once = jax.device_count()
    assert heard == [*range(at_once, TEACHERS, at_once), TEACHERS]
    if OF_SEVERAL:
        disagree()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
