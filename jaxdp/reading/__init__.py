"""Records that stay where they are until they are drawn.

A `Source` reads records by their indices: from memory-mapped arrays, or one by one from files, a TFDS data source or whatever
else has a length and items. A `Reader` knows the draws of all steps in advance and reads their records, block by block, in
threads of Grain's while earlier steps are computed. What is read is a function of the step: to go on at a step needs nothing but
its number. Nothing is skipped: a record that can't be read is an error, for without it the draw would be another.
"""

from ._in_order import in_order as in_order
from ._parts import Block as Block
from ._reader import Reader as Reader
from ._source import Source as Source
