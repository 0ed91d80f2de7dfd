"""A whole private run: one frozen description, from which everything that is executed and accounted is built.

`DPSGD` describes it, by values of `sampling`, `clipping` and `noise`, and goes to JSON and back (`_plain`). `PrivateStep` makes
its steps from one `TrainState` to the next; of a run it knows the contract in `_description`. `_self_check` tries the first
step's clipped gradient against plain differentiation, `step_memory` asks the compiler what a step will need, and `validate`
finds the layers of a flax model that no clipping makes private.
"""

from ._memory import StepMemory as StepMemory, largest_microbatch as largest_microbatch, step_memory as step_memory
from ._run import DPSGD as DPSGD
from ._state import RunKeys as RunKeys, StepMetrics as StepMetrics, TrainState as TrainState
from ._step import PrivateStep as PrivateStep
from ._validate import Obstacle as Obstacle, Validation as Validation, validate as validate
