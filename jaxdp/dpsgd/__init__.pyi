from ._memory import StepMemory as StepMemory, largest_microbatch as largest_microbatch, step_memory as step_memory
from ._run import DPSGD as DPSGD
from ._state import RunKeys as RunKeys, StepMetrics as StepMetrics, TrainState as TrainState
from ._step import PrivateStep as PrivateStep
from ._validate import Obstacle as Obstacle, Validation as Validation, validate as validate
