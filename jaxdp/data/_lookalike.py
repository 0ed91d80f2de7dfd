"""Files in the shape of the drug-response competition's, drawn from a fixed law: for examples and tests without its data.

Each treated record has one of some hidden mechanisms of action, or none. A mechanism moves the record along a direction of its
own in feature space, and switches on the targets that belong to it. No row describes anybody.
"""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from .. import _checks
from .._errors import UsageError
from .._outputs import check_output, written

_SPLITS = ("train", "test")
_MOST_CELLS = 2**28  # of a file, which is drawn as a whole: 2 GiB of numbers


def write_lookalike(
    folder: Path,
    *,
    rows: int = 23_814,
    features: int = 872,
    targets: int = 206,
    test_rows: int = 1000,
    seed: int = 0,
    overwrite: bool = False,
) -> None:
    """Write train_features.csv, train_targets_scored.csv, test_features.csv and, to check predictions, test_targets_scored.csv.

    The features are numbers in [-10, 10] named g-0, g-1, ... and c-0, ..., an eighth of them the latter, behind the coded columns
    cp_type, cp_time and cp_dose. About one target in 300 is 1.

    Args:
        folder: where to write; made if it isn't there.
        rows: of the training files.
        features: numeric columns.
        targets: columns of targets.
        test_rows: of the test files.
        seed: of the law and the draws.
        overwrite: whether files of these names may be replaced.

    Raises:
        UsageError: for counts below 1 or too large to draw, more targets than rows, a seed below 0, and before anything is drawn
            where a file can't be written or exists.
    """
    folder = _checks.path("folder", folder)
    fix = "give a whole number"
    rows, features = _checks.whole("rows", rows, fix), _checks.whole("features", features, fix)
    targets, test_rows = _checks.whole("targets", targets, fix), _checks.whole("test_rows", test_rows, fix)
    seed = _checks.whole("seed", seed, fix)
    if min(rows, features, targets, test_rows) < 1 or targets > rows:
        raise UsageError(
            f"rows={rows}, features={features}, targets={targets}, test_rows={test_rows}: give 1 or more each, and no more "
            "targets than rows"
        )
    if max(rows, test_rows) * max(features, targets) > _MOST_CELLS:
        raise UsageError(
            f"rows={rows}, features={features}, targets={targets}, test_rows={test_rows} are more than {_MOST_CELLS} numbers "
            "in a file: give fewer"
        )
    if seed < 0:
        raise UsageError(f"seed={seed} must be 0 or above")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} can't be made ({error.strerror}): give a folder that can be written") from error
    for split in _SPLITS:
        for kind in ("features", "targets_scored"):
            check_output("file", folder / f"{split}_{kind}.csv", overwrite=overwrite)
    rng = np.random.default_rng(seed)
    mechanisms = max(2, targets // 2)
    directions = rng.normal(size=(mechanisms, features)) * (rng.random((mechanisms, features)) < 0.3) * 1.5
    common = rng.random(mechanisms) ** 3 + 0.02
    belongs = rng.integers(0, mechanisms, targets)
    cells = features // 8
    names = [f"g-{i}" for i in range(features - cells)] + [f"c-{i}" for i in range(cells)]
    for split, count in zip(_SPLITS, (rows, test_rows), strict=True):
        ids = [f"id_{split}_{i:06d}" for i in range(count)]
        treated = rng.random(count) < 0.92
        active = treated & (rng.random(count) < 0.6)
        mechanism = np.where(active, rng.choice(mechanisms, count, p=common / common.sum()), -1)
        shift = np.where(active[:, None], directions[mechanism], 0.0)
        numbers = (rng.standard_t(6, size=(count, features)) + shift).clip(-10, 10)
        of_mechanism = mechanism[:, None] == belongs
        on = (of_mechanism & (rng.random((count, targets)) < 0.9)) | (
            treated[:, None] & (rng.random((count, targets)) < 3e-4)
        )
        coded = zip(
            np.where(treated, "trt_cp", "ctl_vehicle"),
            rng.choice(["24", "48", "72"], count),
            rng.choice(["D1", "D2"], count),
            strict=True,
        )
        rows_of_features = ([*codes, *(f"{x:.4f}" for x in row)] for codes, row in zip(coded, numbers, strict=True))
        _write(
            folder / f"{split}_features.csv", ["sig_id", "cp_type", "cp_time", "cp_dose", *names], ids, rows_of_features
        )
        header = ["sig_id", *(f"target_{i}" for i in range(targets))]
        _write(folder / f"{split}_targets_scored.csv", header, ids, on.astype(int).tolist())


def _write(path: Path, header: Sequence[str], ids: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with written(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([name, *row] for name, row in zip(ids, rows, strict=True))
