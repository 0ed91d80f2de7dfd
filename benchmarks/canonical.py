"""Weights and gradients as named arrays in one layout, the same for every library (see peers/protocol.py).

A name is the leaf's path in flax, such as "Dense_0/kernel". A dense kernel is [in, out], heads included; a convolution's is
[height, width, in, out].
"""

import math
from typing import Any

import jax
import numpy as np

_STRIDE = 2  # of the tutorials' CNN, whose kernels jaxdp keeps by patches


def canonical(tree: Any) -> dict[str, np.ndarray]:
    """The leaves of a flax tree by name, in the canonical layout."""
    return {
        _name(path): _to_canonical(path, np.asarray(leaf)) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def like(tree: Any, arrays: dict[str, np.ndarray]) -> Any:
    """A flax tree as `tree`, from canonical arrays: the inverse of `canonical`."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: _from_canonical(path, arrays[_name(path)], leaf.shape), tree
    )


def _names(path: Any) -> list[str]:
    return [str(entry.key) for entry in path]


def _name(path: Any) -> str:
    parts = [part.replace("PatchConv", "Conv") for part in _names(path)]
    return "/".join(part for part in parts if part not in ("params", "CNN_0", "MLP_0"))


def _to_canonical(path: Any, leaf: np.ndarray) -> np.ndarray:
    parts = _names(path)
    if parts[-2].startswith("PatchConv"):
        return _unpatched(leaf) if parts[-1] == "kernel" else leaf
    return leaf.reshape(_matrix(parts, leaf.shape))


def _from_canonical(path: Any, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    parts = _names(path)
    if parts[-2].startswith("PatchConv") and parts[-1] == "kernel":
        return _patched(array)
    return array.reshape(shape)


def _matrix(parts: list[str], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Heads and their features are one axis."""
    if parts[-2] in ("query", "key", "value"):
        return (shape[0], math.prod(shape[1:])) if parts[-1] == "kernel" else (math.prod(shape),)
    if parts[-2] == "out" and parts[-1] == "kernel":
        return math.prod(shape[:-1]), shape[-1]
    return shape


def _unpatched(kernel: np.ndarray) -> np.ndarray:
    """The matrix of a `PatchConv` as the convolution's kernel [window, window, in, out]."""
    channels, blocks, features = _layout(kernel.shape)
    parts = kernel.reshape(blocks, blocks, _STRIDE, _STRIDE, channels, features)
    window = blocks * _STRIDE
    return parts.transpose(0, 2, 1, 3, 4, 5).reshape(window, window, channels, features)


def _patched(kernel: np.ndarray) -> np.ndarray:
    """The inverse of `_unpatched`."""
    window, _, channels, features = kernel.shape
    blocks = window // _STRIDE
    parts = kernel.reshape(blocks, _STRIDE, blocks, _STRIDE, channels, features)
    return parts.transpose(0, 2, 1, 3, 4, 5).reshape(-1, features)


def _layout(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Channels, blocks a side and features of a `PatchConv` of the tutorials' CNN: 8 × 8 on one channel, 4 × 4 on sixteen."""
    rows, features = shape
    channels = 1 if features == 16 else 16
    return channels, math.isqrt(rows // channels) // _STRIDE, features
