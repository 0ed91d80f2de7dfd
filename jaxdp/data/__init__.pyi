from ._csv import Columns as Columns, read_columns as read_columns
from ._dataset import Dataset as Dataset
from ._fingerprint import Fingerprints as Fingerprints, fingerprint as fingerprint
from ._holding_back import hold_back as hold_back
from ._labelled import Labelled as Labelled, Records as Records
from ._load import DATASETS as DATASETS, load as load, load_labelled as load_labelled, prepared as prepared
from ._lookalike import write_lookalike as write_lookalike
from ._mnist import load_mnist as load_mnist
from ._on_disk import Column as Column, OnDisk as OnDisk
from ._scaling import (
    Bounds as Bounds,
    estimated_bounds as estimated_bounds,
    read_bounds as read_bounds,
    same_bounds as same_bounds,
)
from ._table import (
    Encoding as Encoding,
    Table as Table,
    chosen_columns as chosen_columns,
    declared_categories as declared_categories,
    declared_classes as declared_classes,
    read_classes as read_classes,
    read_numbers as read_numbers,
    read_targets as read_targets,
    refuse_constant as refuse_constant,
)
from ._tasks import TASKS as TASKS, Classes as Classes, Numbers as Numbers, Targets as Targets, Task as Task
from ._tfds import load_tfds as load_tfds
from ._users import group_by_user as group_by_user, loss_of_user as loss_of_user
