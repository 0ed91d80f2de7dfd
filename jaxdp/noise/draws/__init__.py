"""The draws of which noise is made: `standard_normal`, `tree_normal` for a whole tree, `standard_laplace`.

Each in float32, from a key's words by `_threefry`, with tails that go deep enough for the delta that is claimed.
"""

from ._laplace import standard_laplace as standard_laplace
from ._normal import standard_normal as standard_normal, tree_normal as tree_normal
