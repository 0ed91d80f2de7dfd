"""The one exception that jaxdp raises when it is asked for something that it can't do truthfully, and those of NumPy's files."""

import zipfile
import zlib

NOT_ARRAYS = (
    *(ValueError, KeyError, TypeError, EOFError, MemoryError, SyntaxError, OverflowError),
    *(NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error),
)
"""What `numpy.load` raises, beside `OSError`, for a .npy or .npz file that is damaged, of another kind, or without an array."""


class UsageError(ValueError):
    """A value or a combination that jaxdp refuses; the message names it and says what to change.

    Every check that raises it runs on the host, before anything is compiled. The command line prints the message as one
    line and exits with code 2.
    """
