"""The noise that makes sums and votes private.

A `Noise` is a frozen value with a state: `Gaussian()` is the one of DP-SGD. What it draws comes from `draws`:
`standard_normal` and `standard_laplace`, in float32, with tails that go deep enough for the delta that is claimed, and
`tree_normal` for a whole tree. `key_from_entropy` makes a key from the operating system's entropy.
"""

from ._gaussian import Gaussian as Gaussian, GaussianState as GaussianState
from ._keys import key_from_entropy as key_from_entropy
from ._noise import Noise as Noise, check_noise as check_noise
from .draws import standard_laplace as standard_laplace, standard_normal as standard_normal, tree_normal as tree_normal

NOISES: tuple[type[Noise], ...] = (Gaussian,)  # by which a description in JSON is read back
