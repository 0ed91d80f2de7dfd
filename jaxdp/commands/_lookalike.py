"""`jaxdp lookalike`: made-up tables to try `jaxdp train --dataset csv` with."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from .. import data


@dataclass(frozen=True, kw_only=True)
class LookalikeOptions:
    """Write CSV files in the shape of the drug-response competition's, to try `jaxdp train --dataset csv` with."""

    folder: tyro.conf.Positional[Path]
    """where to write them"""
    rows: int = 23_814
    """of the training files"""
    features: int = 872
    """numeric columns, beside three that are coded"""
    targets: int = 206
    """columns of targets"""
    test_rows: int = 1000
    """of the test files"""
    seed: int = 0
    """of the law that they are drawn from, and of the draws"""
    overwrite: bool = False
    """replace files of the same names"""


def lookalike(options: LookalikeOptions) -> None:
    """Write the files."""
    data.write_lookalike(**vars(options))
    print(f"made-up tables are in {options.folder}")
