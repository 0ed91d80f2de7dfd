"""The programs of one workload, compiled for one target: a process of the target's environment, which accelerators.py starts.

Prints a line of JSON for each program, as soon as it is compiled: the compiler's figures, or why there are none.
"""

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from compiler_process import LINE, compiler_of
from targets import TARGETS, Target

sys.path.insert(0, str(Path(__file__).parents[1]))  # jaxdp itself, which isn't installed there

_COSTLIEST = 10
_SIZES = {"wrn": 16, "wrn-standardised": 16}
_REPEATS = 20


def main(target: Target, name: str, methods: list[str], only: list[str], optimizers: list[str], *, here: bool) -> None:
    """Compile and print."""
    import jax
    import optax
    from programs import private_step, programs_of
    from workloads import WORKLOADS

    from jaxdp._platform import compiling_for

    device = jax.devices()[0] if here else _device(target)
    with jax.default_device(jax.devices("cpu")[0]):
        workload = WORKLOADS[name](_SIZES[name]) if name in _SIZES else WORKLOADS[name]()
    sharding = jax.sharding.SingleDeviceSharding(device)
    shapes: Any = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), (workload.params, workload.batch)
    )
    programs = programs_of(workload, methods, "ghost", precision=target.precision)
    for optimizer in optimizers:
        own = getattr(optax, optimizer)(0.1)
        programs[f"private step, {optimizer}"] = private_step(workload, own, method="ghost", precision=target.precision)
    for program, fn in programs.items():
        if not program.startswith(tuple(only)):
            continue
        alone = _gradient_alone(fn) if program.startswith("clipped") else fn
        figures: dict[str, Any] = {"workload": name, "batch_size": workload.batch_size, "program": program}
        figures["compiler"] = compiler_of(target)
        try:
            start = time.perf_counter()
            with compiling_for(target.device):
                traced = jax.jit(alone, out_shardings=sharding).trace(*shapes)
                lowered = traced.lower(lowering_platforms=(target.platform,))
            compiled = lowered.compile()
            figures |= {"compile_seconds": time.perf_counter() - start} | _figures(compiled, target)
            if here:
                figures["milliseconds"] = _timed(compiled, jax.device_put((workload.params, workload.batch), device))
        except jax.errors.JaxRuntimeError as error:  # such as too little memory, which the compiler's words say
            figures["problem"] = str(error).strip().splitlines()[0][:300]
        print(LINE + json.dumps(figures), flush=True)


def _gradient_alone(clipped: Any) -> Any:
    """What a plain gradient gives, too, without losses and norms."""
    return lambda params, batch: clipped(params, batch).grads


def _device(target: Target) -> Any:
    """The target's first device, which isn't here."""
    from jax.experimental import topologies

    if target.device == "tpu":
        return topologies.get_topology_desc(platform="tpu", topology_name=target.topology).devices[0]
    described = topologies.get_topology_desc(
        target.name, platform=target.platform, target_config=target.config, topology=target.topology
    )
    return described.devices[0]


def _figures(compiled: Any, target: Target) -> dict[str, Any]:
    """The compiler's, of one program."""
    from compiled_text import CompiledText

    memory, program = compiled.memory_analysis(), CompiledText(compiled.as_text())
    needed = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
    if needed > target.memory_bytes:
        problem = f"needs {needed / 2**30:.1f} GiB, and {target.name} has {target.memory_bytes / 2**30:.1f}"
        return {"problem": problem}
    on_cores, held = program.products
    figures = {
        "cycles": program.cycles or None,
        "unknown_loops": program.unknown_loops,
        "kernels": program.kernels,
        "products": on_cores,
        "products_in_full_float32": held,
        "collectives": sum(each.times for each in program.collectives),
        "temporary_bytes": memory.temp_size_in_bytes,
        "logarithms": program.logarithms,
        "costliest": [
            {"cycles": each.cycles, "times": each.times, "operation": each.operation.name, "source": each.source}
            for each in program.costliest(_COSTLIEST)
        ],
    }
    if target.device == "gpu":
        return figures | program.roofline(target.bytes_per_second, target.operations_per_second)
    cost = compiled.cost_analysis() or {}
    return figures | {"operations": cost.get("flops"), "bytes": cost.get("bytes accessed")}


def _timed(compiled: Any, arguments: Any) -> float:
    """The median of a call, in milliseconds, on the device itself."""
    import jax

    jax.block_until_ready(compiled(*arguments))
    found = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        found.append(1e3 * (time.perf_counter() - start))
    return statistics.median(found)


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    chosen = TARGETS[asked["target"]]
    if not asked["here"]:
        os.environ.update(chosen.environment, JAX_PLATFORMS="cpu")
    main(chosen, asked["workload"], asked["methods"], asked["only"], asked["optimizers"], here=asked["here"])
