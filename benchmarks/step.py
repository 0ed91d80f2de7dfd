"""The time of a training step: private against plain, one by one against several in one program, by microbatch size.

    python benchmarks/step.py                # the tutorials' CNN, expected batch 512
    python benchmarks/step.py --model mlp

All variants run interleaved in one process, on MNIST and in the loop that training uses: dispatched ahead, read at the
end. Prints a table, and writes it with the hardware, the versions and the command to benchmarks/results/DEVICE/.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import optax
import record
import tyro
from rich.console import Console
from rich.table import Table

import jaxdp
from jaxdp.commands.train._plain_step import PlainStep
from jaxdp.models import Classifier, classifier


@dataclass(frozen=True, kw_only=True)
class Options:
    """The time of a training step."""

    model: Literal["cnn", "mlp"] = "cnn"
    """the tutorials' CNN or MLP"""
    batch_size: int = 512
    """expected examples a step"""
    microbatch_sizes: tuple[int, ...] = (16, 32, 64, 128, 512)
    """sizes to try"""
    steps: int = 8
    """steps of a measurement, and of a program that holds several"""
    repeats: int = 7
    """measurements of each variant, interleaved"""
    results: Path = Path(__file__).parent / "results"
    """where to write"""


@dataclass
class Variant:
    """One way to make `steps` steps, with what was measured of it."""

    name: str
    advance: Callable[[], None]
    compile_seconds: float
    milliseconds: list[float]


def main(options: Options) -> None:
    """Measure, print, write."""
    data = jaxdp.data.load()
    arrays = jax.device_put((data.train_images, data.train_labels))
    variants = [_plain(options, arrays), _private(options, arrays, None), _private(options, arrays, 32, method="vmap")]
    for size in options.microbatch_sizes:
        variants.append(_private(options, arrays, size))
    variants.append(_private(options, arrays, 64, together=True))
    for _ in range(options.repeats):
        for variant in variants:
            start = time.perf_counter()
            variant.advance()
            variant.milliseconds.append(1e3 * (time.perf_counter() - start) / options.steps)
    _report(options, variants)


def _model(options: Options) -> Classifier:
    return classifier(
        options.model, jaxdp.data.Classes(10), input_shape=(28, 28, 1), input_dtype=np.uint8, activation="tanh"
    )


def _plain(options: Options, arrays: Any) -> Variant:
    model = _model(options)
    step = PlainStep(model.loss, optax.sgd(0.1, momentum=0.9), batch_size=options.batch_size, steps_per_epoch=100)
    return _variant("plain", step, model, arrays, options.steps, together=False)


def _private(
    options: Options, arrays: Any, microbatch_size: int | None, *, method: str = "auto", together: bool = False
) -> Variant:
    model = _model(options)
    run = jaxdp.DPSGD(
        num_examples=60_000,
        expected_batch_size=options.batch_size,
        steps=10**6,
        clip_norm=0.1,
        noise_multiplier=1.0,
        microbatch_size=microbatch_size,
    )
    step = run.make_step(model.loss, optax.sgd(0.1, momentum=0.9), has_aux=True, self_check=False)
    step._grad_fn = replace(step._grad_fn, method=method)
    name = "private, as it comes" if microbatch_size is None else f"private, microbatch {microbatch_size}"
    name += f", {options.steps} steps a program" if together else "" if method == "auto" else f", {method}"
    return _variant(name, step, model, arrays, options.steps, together=together)


def _variant(name: str, step: Any, model: Any, arrays: Any, steps: int, *, together: bool) -> Variant:
    init_key, run_key = jax.random.split(jax.random.key(0))
    state = step.init(model.init(init_key), run_key)

    def advance() -> None:
        nonlocal state
        for _ in range(1 if together else steps):
            state, _ = step.many(state, arrays, num_steps=steps if together else 1)
        jax.block_until_ready(state.params)

    start = time.perf_counter()
    advance()
    return Variant(name, advance, time.perf_counter() - start, [])


def _report(options: Options, variants: list[Variant]) -> None:
    device = jax.devices()[0]
    plain = statistics.median(variants[0].milliseconds)
    table = Table(title=f"{options.model}, expected batch {options.batch_size}, on {device.device_kind}")
    for heading in ("step", "ms (median)", "spread (ms)", "ratio to plain", "first call (s)"):
        table.add_column(heading, justify="left" if heading == "step" else "right")
    rows = []
    for variant in variants:
        times = variant.milliseconds
        median = statistics.median(times)
        row = {"step": variant.name, "ms": median, "min_ms": min(times), "max_ms": max(times)}
        rows.append(row | {"ratio": median / plain, "first_call_seconds": variant.compile_seconds})
        spread = f"{min(times):.1f} to {max(times):.1f}"
        table.add_row(variant.name, f"{median:.1f}", spread, f"{median / plain:.2f}", f"{variant.compile_seconds:.1f}")
    Console().print(table)
    record.write(options.results, f"step-{options.model}-{options.batch_size}", {"rows": rows})


if __name__ == "__main__":
    main(tyro.cli(Options))
