"""The noise that makes sums and votes private.

`standard_normal` and `standard_laplace` draw it, in float32, with tails that go deep enough for the delta that is claimed.
`tree_normal` draws for a whole tree. `key_from_entropy` makes a key from the operating system's entropy.
"""

from ._gaussian import standard_normal as standard_normal, tree_normal as tree_normal
from ._keys import key_from_entropy as key_from_entropy
from ._laplace import standard_laplace as standard_laplace
