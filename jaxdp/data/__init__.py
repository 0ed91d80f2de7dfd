"""Images and labels as arrays: MNIST from the package itself, anything else from a TFDS data set prepared on disk."""

from ._dataset import Dataset as Dataset, fingerprint as fingerprint, hold_back as hold_back
from ._load import load as load
from ._mnist import load_mnist as load_mnist
from ._tfds import load_tfds as load_tfds
from ._users import group_by_user as group_by_user, loss_of_user as loss_of_user
