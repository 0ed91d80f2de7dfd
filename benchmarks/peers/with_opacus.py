"""Opacus: per-example gradients from hooks or from functorch, ghost clipping, and PyTorch's ordinary step.

Opacus 1.6.0 reads a convolution's input by strides that hold only where a row's pixels lie beside each other in memory
(`unfold2d` in opacus/utils/tensor_utils.py). Images in PyTorch's channels-last format, to which a view of NHWC data belongs, give
it other numbers: from hooks wrong gradients, under ghost clipping wrong norms. The modes "hooks, channels last" and "ghost,
channels last" show that; in all the others images lie as Opacus takes them.
"""

from typing import Any

import numpy as np
import opacus
import torch
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from protocol import NotOfferedError, Programs, Task, serve
from torch import nn
from torch_models import canonical, model_of

_PRIVATE = ("hooks", "functorch", "ghost")
_FORMS = {"channels last": _PRIVATE, "compiled": ("plain",)}


def build(task: Task) -> Programs:
    """The programs of a mode: "hooks", "functorch", "ghost" or "plain", with what `_FORMS` offers of it."""
    way, _, form = task.mode.partition(", ")
    if way not in (*_PRIVATE, "plain") or (form and way not in _FORMS.get(form, ())):
        raise NotOfferedError(f"there is no mode {task.mode!r}")
    if form == "channels last" and task.inputs.ndim != 4:
        raise NotOfferedError("only images have channels")
    device = _device(task)
    torch.manual_seed(0)
    model = model_of(task.workload, task.weights, private=way != "plain").to(device)
    sgd = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=task.learning_rate)

    def place(inputs: np.ndarray, labels: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        images = inputs.transpose(0, 3, 1, 2) if inputs.ndim == 4 else inputs
        laid = images if form == "channels last" else images.copy()  # ascontiguousarray keeps one channel as it is
        return torch.from_numpy(laid).to(device), torch.from_numpy(labels.astype(np.int64)).to(device)

    on_gpu = device.type == "cuda"
    clipped, step = _plain(model, sgd, form) if way == "plain" else _private(task, way, model, sgd)
    return Programs(
        place=place,
        clipped=clipped,
        canonical=lambda tensors: canonical(tensors, task.weights),
        step=step,
        wait=lambda value: torch.cuda.synchronize() if on_gpu else None,
        peak_bytes=torch.cuda.max_memory_allocated if on_gpu else None,
    )


def _device(task: Task) -> torch.device:
    """Set up the processor's threads or the GPU's precision."""
    torch.set_num_threads(task.threads)
    if task.device == "cpu":
        return torch.device("cpu")
    if task.device == "tpu":
        raise NotOfferedError("Opacus has no TPU")
    if not torch.cuda.is_available():
        raise NotOfferedError("PyTorch finds no gpu here")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = task.precision == "fast"
    return torch.device("cuda")


def _plain(model: nn.Module, sgd: torch.optim.Optimizer, form: str) -> tuple[Any, Any]:
    apply = torch.compile(model) if form == "compiled" else model

    def backward(inputs: torch.Tensor, labels: torch.Tensor, reduction: str) -> None:
        sgd.zero_grad()
        try:
            logits = apply(inputs)
        except torch._dynamo.exc.TorchDynamoException as error:
            raise NotOfferedError(f"torch.compile: {str(error).splitlines()[0]}") from error
        nn.functional.cross_entropy(logits, labels, reduction=reduction).backward()

    def gradient(inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        backward(inputs, labels, "sum")
        return _named(model, "grad")

    def step(inputs: torch.Tensor, labels: torch.Tensor) -> None:
        backward(inputs, labels, "mean")
        sgd.step()

    return gradient, step


def _private(task: Task, way: str, model: nn.Module, sgd: torch.optim.Optimizer) -> tuple[Any, Any]:
    criterion: Any = nn.CrossEntropyLoss()
    privacy = {
        "noise_multiplier": task.noise_multiplier,
        "max_grad_norm": task.clip_norm,
        "expected_batch_size": len(task.labels),
    }
    if way == "ghost":
        wrapped = GradSampleModuleFastGradientClipping(model, max_grad_norm=task.clip_norm, use_ghost_clipping=True)
        optimizer = DPOptimizerFastGradientClipping(sgd, **privacy)
        criterion = DPLossFastGradientClipping(wrapped, optimizer, criterion)
    else:
        wrapped = GradSampleModule(model, force_functorch=way == "functorch")
        optimizer = DPOptimizer(sgd, **privacy)

    def backward(inputs: torch.Tensor, labels: torch.Tensor) -> None:
        optimizer.zero_grad()
        criterion(wrapped(inputs), labels).backward()

    def clipped(inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        backward(inputs, labels)
        if way == "ghost":  # its second backward pass is of losses weighted by the clipping factors
            return _named(model, "grad")
        optimizer.clip_and_accumulate()
        return _named(model, "summed_grad")

    def step(inputs: torch.Tensor, labels: torch.Tensor) -> None:
        backward(inputs, labels)
        optimizer.step()

    return clipped, step


def _named(model: nn.Module, attribute: str) -> dict[str, torch.Tensor]:
    """An attribute of each parameter that is trained."""
    return {name: getattr(p, attribute) for name, p in model.named_parameters() if p.requires_grad}


if __name__ == "__main__":
    serve(build, lambda: {"opacus": opacus.__version__, "torch": torch.__version__})
