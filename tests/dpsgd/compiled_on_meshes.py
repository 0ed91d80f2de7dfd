"""What steps are compiled to on eight devices: a process of its own, since devices are counted where JAX starts.

By hand, all layouts or those that are named:

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python tests/dpsgd/compiled_on_meshes.py fsdp
"""

import math
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from compiled_text import CompiledText
from meshes import LAYOUTS, Steps
from workloads import Workload

N, FEATURES, HIDDEN, CLASSES = 512, 64, 8192, 4
LEAF = FEATURES * HIDDEN  # values of the large one
SHAPE = re.compile(r"\b(pred|[suf]\d+|bf16)\[([\d,]+)\]")
OF_NOISE = ("_normal.py", "_threefry.py", "_gaussian.py")


def loss(params: Any, example: Any) -> Any:
    x, y = example
    hidden = jnp.tanh(x @ params["in"] + params["bias"])
    return optax.softmax_cross_entropy_with_integer_labels(hidden @ params["out"], y)


PARAMS = {"in": jnp.ones((FEATURES, HIDDEN)), "bias": jnp.zeros(HIDDEN), "out": jnp.ones((HIDDEN, CLASSES))}
BATCH = (jnp.ones((2, FEATURES)), jnp.ones(2, jnp.int32))
WORKLOAD = Workload("two layers", 2, loss, loss, PARAMS, BATCH)


def main(chosen: list[str]) -> None:
    for name in chosen or LAYOUTS:
        mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
        steps = Steps(WORKLOAD, mesh, LAYOUTS[name], N, batch_size=57, by_rows=False)
        private, plain = (CompiledText(step().lower().compile().as_text()) for step in (steps.private, steps.plain))
        check_between_devices(private, plain, name)
        check_rows(private, steps.rows)
        check_noise(private)
    print("compiled as it must be")


def check_between_devices(private: CompiledText, plain: CompiledText, layout: str) -> None:
    """What passes between devices is what passes in the plain step, and the count of clipped examples, of four bytes."""
    own, others = between(private), between(plain)
    assert others, "the plain step adds its gradients up"
    further = own - others
    assert further <= Counter({("reduce-scatter", 4): 1, ("all-gather", 4): 1}), (
        f"{layout}: {further}, and all: {private.collectives}"
    )


def between(program: CompiledText) -> Counter[tuple[str, int]]:
    """Each array that passes between devices: what is done with it, and its bytes. A sum everywhere is scattered and gathered."""
    parts = {"all-reduce": ("reduce-scatter", "all-gather")}
    return Counter(
        (part, size)
        for each in program.collectives
        for part in parts.get(each.kind, (each.kind,))
        for size in each.arrays
    )


def check_rows(program: CompiledText, rows: int) -> None:
    """Each device computes its part of the rows, and nothing has rows times parameters."""
    parts = {(kind, length, others) for kind, length, others in arrays(program) if length in (rows, rows // 8)}
    assert any(length == rows // 8 and others == HIDDEN for _, length, others in parts), "its part is computed"
    whole = [(kind, others) for kind, length, others in parts if length == rows and others > FEATURES]
    assert not whole, f"every device has all {rows} rows of {whole}"
    large = [(kind, length, others) for kind, length, others in parts if others >= LEAF // 8]
    assert not large, f"arrays of rows times parameters: {large}"


def check_noise(program: CompiledText) -> None:
    """The noise of a large leaf is drawn in parts, whether devices have a part of the leaf or the whole."""
    sizes = [
        math.prod(dimensions(each.shape))
        for operations in program.computations.values()
        for each in operations
        if program.source(each).startswith(OF_NOISE)
    ]
    assert max(sizes) == LEAF // 8, sorted(set(sizes))
    bits = [length * others for kind, length, others in arrays(program) if kind == "u32"]
    assert max(bits) <= LEAF // 8, sorted(set(bits))


def arrays(program: CompiledText) -> list[tuple[str, int, int]]:
    """Of each array of the text the type, the first length, and the product of the others."""
    found = {(kind, tuple(map(int, shape.split(",")))) for kind, shape in SHAPE.findall(program.text)}
    return [(kind, shape[0], math.prod(shape[1:])) for kind, shape in found]


def dimensions(shape: str) -> list[int]:
    found = SHAPE.search(shape)
    return [int(length) for length in found[2].split(",")] if found else []


if __name__ == "__main__":
    main(sys.argv[1:])
