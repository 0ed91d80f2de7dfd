"""Images and labels as arrays: MNIST from the package itself, anything else from a TFDS data set prepared on disk. Tables with
binary targets from CSV files."""

from ._csv import Columns as Columns, read_columns as read_columns
from ._dataset import Dataset as Dataset, fingerprint as fingerprint, hold_back as hold_back
from ._load import load as load
from ._lookalike import write_lookalike as write_lookalike
from ._mnist import load_mnist as load_mnist
from ._scaling import (
    Bounds as Bounds,
    estimated_bounds as estimated_bounds,
    read_bounds as read_bounds,
    same_bounds as same_bounds,
)
from ._table import (
    Encoding as Encoding,
    chosen_columns as chosen_columns,
    declared_categories as declared_categories,
    read_targets as read_targets,
    refuse_constant as refuse_constant,
)
from ._tfds import load_tfds as load_tfds
from ._users import group_by_user as group_by_user, loss_of_user as loss_of_user
