"""The teachers of `jaxdp pate`: what each predicts is kept as it is known, and no teacher is trained twice.

Of several processes the first one has the folder. It tells the others what is in it that they need, then each trains its part,
and what they predict is gathered as they go on: the first one keeps it, so that any number of processes can go on with the run.
"""

import io
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int
from rich.console import Console

from ... import _checks, data as datasets
from ..._interrupts import Interrupted
from ..._processes import all_well, from_first, on_first, several
from ...models import Classifier
from ...pate._teachers import Ensemble, predicted_classes, settled
from ...runs._folder import RunFolder
from ...runs._pace import Pace
from ...runs._report import progress_display
from ._coordinates import Coordinates
from ._keys import read_key
from ._options import PateOptions
from ._predictions import Kept, load_array, save_array
from ._recipe import Teaching, distorting_teaching, linear_teaching, teacher_optimizer

_SECONDS_BETWEEN_SAVES = 1.0
_UNTRAINED = -1  # in a class's place


def rows_of_queries(folder: RunFolder, options: PateOptions, public: int) -> Int[np.ndarray, " queries"]:
    """The public images that the teachers are asked about."""
    return np.asarray(jax.random.permutation(read_key(folder, "queries"), public)[: options.queries])


def teach(
    options: PateOptions,
    data: datasets.Dataset,
    model: Classifier,
    coordinates: Coordinates,
    console: Console,
) -> Int[np.ndarray, "teachers queries"]:
    """Train the teachers that have not predicted yet, in all processes; what all of them predict for the queries."""
    folder = coordinates.folder
    path = folder.private / "predictions.npy"

    def from_folder() -> dict[str, np.ndarray]:
        nobody = np.full((options.teachers, options.queries), _UNTRAINED, np.int32)
        rows = rows_of_queries(folder, options, coordinates.public)
        key = np.asarray(jax.random.key_data(read_key(folder, "teachers")))
        told = {"key": key, "rows": rows, "found": load_array(Kept(path, folder.mark)) if path.exists() else nobody}
        if options.teacher_model == "graph":
            public, private = coordinates.both
            told |= {"private": private, "queries": public[rows]}
        return told

    told = _arrays_from_first(from_folder)
    rows, found = told["rows"], told["found"]
    teaching, records, queries = _teaching(data, model, told)
    left = np.flatnonzero(found[:, 0] == _UNTRAINED)
    ensemble = all_well(
        lambda: Ensemble(
            teaching.loss,
            teaching.init,
            (records, data.train_labels),
            options.teachers,
            teacher_optimizer(options, len(data.train_labels)),
            options.teacher_epochs,
            options.teacher_batch_size,
            jax.random.wrap_key_data(jnp.asarray(told["key"]), impl=_checks.THREEFRY),
            finish=predicted_classes(teaching.logits, queries),
        )
    )
    pace, done = Pace(_SECONDS_BETWEEN_SAVES), options.teachers - len(left)
    with progress_display(console, options.teachers, done) as display:
        for part in ensemble.train(left.tolist()):
            found[left[: len(part)]] = part
            left, done = left[len(part) :], done + len(part)
            save, stop = pace.due()
            if save or not len(left):
                on_first(lambda: save_array(Kept(path, folder.mark), found))
                pace.saved()
            if stop:
                raise Interrupted
            display.update(done, "teachers trained")
        votes = settled(found, "give a lower --teacher-lr, and another --output")
        if (votes != found).any():
            on_first(lambda: save_array(Kept(path, folder.mark), votes))
        accuracy = np.mean(votes == data.test_labels[rows], axis=1)
        display.end_of_epoch(
            f"{done} teachers of {ensemble.shards.shape[1]} images, accuracy {accuracy.mean():.2%} "
            f"({accuracy.min():.2%} to {accuracy.max():.2%}) on the queries, by labels that the run doesn't use"
        )
    return votes


def _teaching(
    data: datasets.Dataset, model: Classifier, told: dict[str, np.ndarray]
) -> tuple[Teaching, np.ndarray, np.ndarray]:
    """What the teachers are, what they see of the private records, and of the queries."""
    if "private" not in told:
        return distorting_teaching(model), data.train_images, data.test_images[told["rows"]]
    private = told["private"]
    return linear_teaching(data.num_classes, private.shape[1]), private, told["queries"]


def _arrays_from_first(make: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """What the first process makes, in every process."""
    if not several():
        return make()

    def packed() -> bytes:
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, **make())  # pyright: ignore[reportArgumentType]
        return file.getvalue()

    with np.load(io.BytesIO(from_first(packed)), allow_pickle=False) as arrays:
        return dict(arrays)
