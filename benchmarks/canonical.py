"""Weights and gradients of a workload as named arrays in canonical layout, the same for every library (see peers/protocol.py)."""

from typing import Any

import numpy as np

_CNN = ("PatchConv_0", 8), ("PatchConv_1", 4)
_STRIDE = 2


def canonical(workload: str, tree: Any) -> dict[str, np.ndarray]:
    """The leaves of a flax tree by name.

    Args:
        workload: "cnn" or "mlp".
        tree: parameters, or a gradient like them.

    Raises:
        KeyError: for a workload that has no canonical layout yet.
    """
    if workload == "cnn":
        layers = tree["params"]["CNN_0"]
        dense = {f"dense{i}": layers[f"Dense_{i}"] for i in range(2)}
        convs = {
            f"conv{i}": {"kernel": _unpatched(layers[name]["kernel"], window), "bias": layers[name]["bias"]}
            for i, (name, window) in enumerate(_CNN)
        }
        named = convs | dense
    elif workload == "mlp":
        named = {f"dense{i}": tree["params"][f"layers_{2 * i}"] for i in range(3)}
    else:
        raise KeyError(workload)
    return {f"{layer}/{kind}": np.asarray(leaf) for layer, pair in named.items() for kind, leaf in pair.items()}


def _unpatched(kernel: Any, window: int) -> np.ndarray:
    """The matrix of a `PatchConv` as the convolution's kernel [window, window, in, out]."""
    blocks, features = window // _STRIDE, kernel.shape[-1]
    parts = np.asarray(kernel).reshape(blocks, blocks, _STRIDE, _STRIDE, -1, features)
    return parts.transpose(0, 2, 1, 3, 4, 5).reshape(window, window, -1, features)
