"""The libraries that are compared, and the ways in which each can do a workload."""

from dataclasses import dataclass

WORKLOADS = ("cnn", "mlp", "transformer-28", "tutorial-mlp", "lstm", "text", "wrn")
TUTORIALS = ("cnn", "tutorial-mlp")
_BATCH_SIZES = {"transformer-28": 64, "lstm": 64, "wrn": 16}  # the others 256


@dataclass(frozen=True)
class Library:
    """A library and its modes.

    Attributes:
        name: as on the command line.
        tutorial: the mode of its own tutorials, measured on their models at least.
        private: modes of the private step, the first tried first.
        plain: modes of the non-private step; none where it is that of "jaxdp", JAX's own.
        private_cnn: further ones on the tutorials' CNN, such as XLA for TF Privacy and functorch for Opacus, which are slower
            than the library's other modes wherever they were tried.
        plain_cnn: the same without privacy.
    """

    name: str
    tutorial: str
    private: tuple[str, ...]
    plain: tuple[str, ...] = ()
    private_cnn: tuple[str, ...] = ()
    plain_cnn: tuple[str, ...] = ()

    @property
    def script(self) -> str:
        """Its process, beside the pinned lists."""
        return f"with_{self.name.replace('-', '_')}.py"

    def modes(self, workload: str, *, every: bool = True) -> tuple[str, ...]:
        """Its ways to do a workload: all of them on the CNN, or the usual ones; that of its tutorials on their models."""
        usual = (*self.plain, *self.private)
        if workload == "cnn" and every:
            usual = (*usual, *self.plain_cnn, *self.private_cnn)
        if workload in TUTORIALS:
            usual = (*usual, self.tutorial_mode(workload))
        whole = batch_size_of(workload)
        return tuple(dict.fromkeys(mode for mode in usual if mode != f"microbatch {whole}"))

    def tutorial_mode(self, workload: str) -> str:
        """The mode that a reader of its tutorials would run."""
        return (
            f"{self.tutorial}{FLAX}"
            if workload == "cnn" and f"{self.tutorial}{FLAX}" in self.private_cnn
            else self.tutorial
        )


FLAX = ", flax's layers"
_MICROBATCHES = ("microbatch 1", "microbatch 16", "whole batch")
_CNN = (f"whole batch{FLAX}",)

LIBRARIES = {
    library.name: library
    for library in (
        Library("jaxdp", "auto", ("auto",), ("plain", "plain, vmap"), (f"auto{FLAX}",), (f"plain{FLAX}",)),
        Library("jax-privacy", "whole batch", _MICROBATCHES, (), _CNN),
        Library("optax", "whole batch", _MICROBATCHES, (), _CNN),
        Library(
            "opacus",
            "hooks",
            ("ghost", "hooks"),
            ("plain",),
            ("functorch", "hooks, channels last", "ghost, channels last"),
        ),
        Library(
            "tf-privacy",
            "DPKerasSGDOptimizer",
            ("DPModel", "DPModel, ghost"),
            ("plain",),
            (
                "DPModel, XLA",
                "VectorizedDPKerasSGDOptimizer",
                "VectorizedDPKerasSGDOptimizer, XLA",
                "DPKerasSGDOptimizer, XLA",
            ),
            ("plain, XLA",),
        ),
    )
}


def batch_size_of(workload: str) -> int:
    """The batch that a workload usually has."""
    return _BATCH_SIZES.get(workload, 256)
