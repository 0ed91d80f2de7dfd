"""A whole private run: one frozen description, from which everything that is executed and accounted is built.

`DPSGD` describes it, by values of `sampling`, `clipping` and `noise`, and goes to JSON and back (`_plain`). `PrivateStep` makes
its steps from one `TrainState` to the next; of a run it knows the contract in `_description`. While the step is compiled
(`_compiling`), `_self_check` tries its clipped gradient against plain differentiation. `step_memory` asks the compiler what a
step will need, and `validate` finds the layers of a flax model that no clipping makes private.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
