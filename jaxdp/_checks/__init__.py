"""Checks of arguments on the host: each returns the value as a plain Python one, or says what to change.

Plain numbers matter: dp-accounting treats a NumPy or JAX scalar as another type than `float` and can then drop a
composition, and a traced value can't be checked at all. What needs no JAX doesn't wait for it: a command's options are checked
by `_plain` alone.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
