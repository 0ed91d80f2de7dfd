"""Records with labels, as arrays: images (MNIST from the package itself, others from TFDS data sets prepared on disk), tables
from CSV files, whose targets are binary, a class or numbers, and data sets of one's own.

A `Dataset` of images and a `Table` are read by their own functions; each becomes a `Labelled` data set, which is what training
takes: inputs, labels, and a `Task` that says what labels mean, which loss they have and how predictions are evaluated. A data set
of one's own is a line in `DATASETS`. A TFDS data set that doesn't fit in memory is an `OnDisk` one, read as it is drawn.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
