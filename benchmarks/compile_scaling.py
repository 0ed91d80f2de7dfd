"""Whole steps of one workload, compiled for the devices of one target: a process of its environment, which scaling.py starts.

Prints a line of JSON for each program, as soon as it is compiled: the compiler's figures, or why there are none.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from compiler_process import LINE, compiler_of
from targets import TARGETS, Target

sys.path.insert(0, str(Path(__file__).parents[1]))  # jaxdp itself, which isn't installed there

_COSTLIEST = 10


def main(
    target: Target, name: str, topology: str, layout: str, batch_size: int, num_examples: int, *, by_rows: bool
) -> None:
    """Compile and print."""
    import jax
    from meshes import LAYOUTS, Steps
    from workloads import WORKLOADS

    from jaxdp._platform import compiling_for

    with jax.default_device(jax.devices("cpu")[0]):
        workload = WORKLOADS[name](2)
    steps = Steps(workload, _mesh(topology), LAYOUTS[layout], num_examples, batch_size, target.precision, by_rows)
    for program, traced in (("draw", steps.draw), ("plain", steps.plain), ("private", steps.private)):
        figures: dict[str, Any] = {"workload": name, "topology": topology, "devices": steps.mesh.size, "layout": layout}
        figures |= {"batch_size": batch_size, "rows": steps.rows, "num_examples": num_examples}
        figures |= {"by_rows": by_rows, "program": program, "compiler": compiler_of(target)}
        start = time.perf_counter()
        try:
            with compiling_for(target.device):
                lowered = traced().lower(lowering_platforms=(target.platform,))
            compiled = lowered.compile()
            figures |= {"compile_seconds": time.perf_counter() - start} | _figures(compiled, target)
        except jax.errors.JaxRuntimeError as error:  # such as too little memory, which the compiler's words say
            figures["problem"] = str(error).strip().splitlines()[0][:300]
        print(LINE + json.dumps(figures), flush=True)


def _mesh(topology: str) -> Any:
    """All devices of a topology, which aren't here, in one row, as one process has them."""
    import jax
    from jax.experimental import topologies

    sides = [int(side) for side in topology.split(":")[1].split("x")]
    bounds = [*sides, 1][:3]  # of one host
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology, chips_per_host_bounds=bounds).devices
    return jax.make_mesh((len(devices),), ("data",), devices=devices, axis_types=(jax.sharding.AxisType.Auto,))


def _figures(compiled: Any, target: Target) -> dict[str, Any]:
    """The compiler's, of one program, for each device."""
    from compiled_text import CompiledText

    memory, program = compiled.memory_analysis(), CompiledText(compiled.as_text())
    needed = memory.temp_size_in_bytes + memory.argument_size_in_bytes
    if needed > target.memory_bytes:
        return {"problem": f"needs {needed / 2**30:.1f} GiB, and a device has {target.memory_bytes / 2**30:.1f}"}
    return {
        "cycles": program.cycles,
        "unknown_loops": program.unknown_loops,
        "temporary_bytes": memory.temp_size_in_bytes,
        "argument_bytes": memory.argument_size_in_bytes,
        "changing_bytes": memory.alias_size_in_bytes,  # parameters and state, which take the place of those before
        "collectives": [each._asdict() | {"bytes": each.bytes} for each in program.collectives],
        "costliest": [
            {"cycles": each.cycles, "times": each.times, "operation": each.operation.name, "source": each.source}
            for each in program.costliest(_COSTLIEST)
        ],
    }


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    chosen = TARGETS[asked.pop("target")]
    os.environ.update(chosen.environment, JAX_PLATFORMS="cpu")
    main(chosen, **asked)
