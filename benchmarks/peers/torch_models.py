"""The models of benchmarks/workloads.py in PyTorch, of the same function, and their parameters as canonical arrays and back.

Layers have the names that flax gives theirs and the shapes of the weights that they are to hold.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from opacus.layers import DPLSTM
from torch import nn
from torch.nn import functional as F

Weights = dict[str, np.ndarray]
Layers = dict[str, nn.Module]
Forward = Callable[[Any, torch.Tensor], torch.Tensor]

_EPSILON = 1e-6  # of flax's normalisations
_HEADS = 4
_LSTM = "OptimizedLSTMCell_0"


class Model(nn.Module):
    """Layers by their names in flax, and what is done with them."""

    def __init__(self, layers: Layers, forward: Forward) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)
        self._run = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._run(self.layers, x)


def model_of(workload: str, weights: Weights, *, private: bool) -> Model:
    """The workload's model with the given weights.

    Args:
        workload: its name.
        weights: canonical arrays.
        private: whether Opacus takes its gradients: then the LSTM is Opacus's, without privacy it is PyTorch's own.
    """
    make, forward = _MODELS[workload]
    layers = make(weights) | ({_LSTM: _lstm(DPLSTM if private else nn.LSTM)} if workload == "lstm" else {})
    model = Model(layers, forward)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parts = [_to_torch(part, weights[part]) for part in _canonical_names(name, weights)]
                parameter.copy_(torch.cat(parts).reshape(parameter.shape))
    return model


def canonical(tensors: dict[str, torch.Tensor], like: Weights) -> Weights:
    """Tensors by their parameters' names, in the layout of `like`."""
    arrays = {}
    for name, tensor in tensors.items():
        parts = _canonical_names(name, like)
        for part, piece in zip(parts, tensor.detach().cpu().chunk(len(parts)), strict=True):
            array = piece.numpy()
            if part.endswith("kernel"):
                array = array.transpose(*range(2, array.ndim), 1, 0)
            arrays[part] = array.reshape(like[part].shape)
    return arrays


def _canonical_names(parameter: str, weights: Weights) -> list[str]:
    """The canonical arrays that, one below the other, are a parameter: four gates in an LSTM, one elsewhere."""
    layer, kind = parameter.removeprefix("_module.").removeprefix("layers.").rsplit(".", 1)
    if layer == _LSTM:
        side, leaf = {"weight_ih_l0": "i kernel", "weight_hh_l0": "h kernel", "bias_hh_l0": "h bias"}[kind].split()
        return [f"{layer}/{side}{gate}/{leaf}" for gate in "ifgo"]
    if kind == "bias":
        return [f"{layer}/bias"]
    names = (f"{layer}/kernel", f"{layer}/scale", f"{layer}/embedding", layer)
    return [next(name for name in names if name in weights)]


def _to_torch(name: str, array: np.ndarray) -> torch.Tensor:
    """A canonical array with PyTorch's order of axes."""
    if name.endswith("kernel"):
        array = array.transpose(-1, -2, *range(array.ndim - 2))
    return torch.from_numpy(np.ascontiguousarray(array))


def _dense(weights: Weights) -> Layers:
    """A linear layer for every kernel that is a matrix."""
    kernels = {name.removesuffix("/kernel"): array for name, array in weights.items() if name.endswith("/kernel")}
    return {name: nn.Linear(*array.shape) for name, array in kernels.items() if array.ndim == 2}


def _norms(weights: Weights, norm: Callable[[int], nn.Module]) -> Layers:
    scales = {name.removesuffix("/scale"): array for name, array in weights.items() if name.endswith("/scale")}
    return {name: norm(array.size) for name, array in scales.items()}


def _cnn_layers(weights: Weights) -> Layers:
    return _dense(weights) | {"Conv_0": nn.Conv2d(1, 16, 8, 2, padding=3), "Conv_1": nn.Conv2d(16, 32, 4, 2)}


def _cnn(layers: Layers, x: torch.Tensor) -> torch.Tensor:
    for name in ("Conv_0", "Conv_1"):
        x = F.max_pool2d(torch.tanh(layers[name](x)), 2, 1)
    x = x.permute(0, 2, 3, 1).flatten(1)
    return layers["Dense_1"](torch.tanh(layers["Dense_0"](x)))


def _mlp(names: tuple[str, ...], layers: Layers, x: torch.Tensor) -> torch.Tensor:
    x = x.flatten(1)
    for name in names[:-1]:
        x = torch.relu(layers[name](x))
    return layers[names[-1]](x)


def _transformer_layers(weights: Weights) -> Layers:
    norms = _norms(weights, partial(nn.LayerNorm, eps=_EPSILON))
    return _dense(weights) | norms | {"positions": nn.Embedding(*weights["positions"].shape)}


def _transformer(layers: Layers, x: torch.Tensor) -> torch.Tensor:
    """Positions are looked up by each example: Opacus knows a parameter's gradient by the layer that it is in."""
    places = torch.arange(x.shape[1], device=x.device).repeat(len(x), 1)
    x = layers["Dense_0"](x) + layers["positions"](places)
    for block in range(4):
        x = x + _attention(layers, block, layers[f"LayerNorm_{2 * block}"](x))
        y = layers[f"Dense_{2 * block + 2}"](layers[f"LayerNorm_{2 * block + 1}"](x))
        x = x + layers[f"Dense_{2 * block + 1}"](F.gelu(y, approximate="tanh"))
    return layers["Dense_9"](layers["LayerNorm_8"](x).mean(1))


def _attention(layers: Layers, block: int, x: torch.Tensor) -> torch.Tensor:
    layer = lambda name: layers[f"MultiHeadDotProductAttention_{block}/{name}"]
    heads = lambda name: layer(name)(x).unflatten(-1, (_HEADS, -1)).transpose(1, 2)
    y = F.scaled_dot_product_attention(heads("query"), heads("key"), heads("value"))
    return layer("out")(y.transpose(1, 2).flatten(-2))


def _lstm(kind: type[nn.Module]) -> nn.Module:
    """An LSTM with one bias, as flax has it: the other is held at zero, outside the gradient."""
    lstm = kind(28, 128, batch_first=True)
    nn.init.zeros_(lstm.bias_ih_l0).requires_grad_(False)
    return lstm


def _lstm_layers(weights: Weights) -> Layers:
    return {"Dense_0": nn.Linear(*weights["Dense_0/kernel"].shape)}


def _last_state(layers: Layers, x: torch.Tensor) -> torch.Tensor:
    return layers["Dense_0"](layers[_LSTM](x)[0][:, -1])


def _text_layers(weights: Weights) -> Layers:
    return _dense(weights) | {"Embed_0": nn.Embedding(*weights["Embed_0/embedding"].shape)}


def _text(layers: Layers, tokens: torch.Tensor) -> torch.Tensor:
    return layers["Dense_0"](torch.relu(layers["Dense_1"](layers["Embed_0"](tokens).mean(1))))


_STRIDES = (1, 1, 2, 1, 2, 1)  # of the wide residual network's blocks


def _wrn_layers(weights: Weights) -> Layers:
    """The dense skips are convolutions of one pixel: Opacus's norms of a dense layer grow with the square of the pixels."""
    layers = _dense(weights) | _norms(weights, lambda width: nn.GroupNorm(16, width, eps=_EPSILON))
    conv = lambda name, **shape: nn.Conv2d(*weights[f"{name}/kernel"].shape[-2:], bias="Dense" in name, **shape)
    layers["_Conv_0"] = conv("_Conv_0", kernel_size=3, padding=1)
    for block, stride in enumerate(_STRIDES):
        first, second = f"_Conv_{2 * block + 1}", f"_Conv_{2 * block + 2}"
        layers[first] = conv(first, kernel_size=3, stride=stride, padding=1 if stride == 1 else 0)
        layers[second] = conv(second, kernel_size=3, padding=1)
        if block % 2 == 0:
            skip = f"Dense_{block // 2}"
            layers[skip] = conv(skip, kernel_size=1, stride=stride)
    return layers


def _wrn(layers: Layers, x: torch.Tensor) -> torch.Tensor:
    norm = lambda index, x: layers[f"GroupNorm_{index}"](torch.relu(x))
    x = layers["_Conv_0"](x)
    for block, stride in enumerate(_STRIDES):
        y = norm(2 * block, x)
        skip = layers[f"Dense_{block // 2}"](y) if block % 2 == 0 else x
        y = F.pad(y, (0, 1, 0, 1)) if stride == 2 else y  # JAX's SAME: an even side is padded at its end alone
        y = norm(2 * block + 1, layers[f"_Conv_{2 * block + 1}"](y))
        x = skip + layers[f"_Conv_{2 * block + 2}"](y)
    return layers["Dense_3"](norm(12, x).mean((-2, -1)))


_MODELS: dict[str, tuple[Callable[[Weights], Layers], Forward]] = {
    "cnn": (_cnn_layers, _cnn),
    "tutorial-mlp": (_dense, partial(_mlp, ("Dense_0", "Dense_1", "Dense_2"))),
    "mlp": (_dense, partial(_mlp, ("layers_0", "layers_2", "layers_4"))),
    "transformer-28": (_transformer_layers, _transformer),
    "lstm": (_lstm_layers, _last_state),
    "text": (_text_layers, _text),
    "wrn": (_wrn_layers, _wrn),
}
