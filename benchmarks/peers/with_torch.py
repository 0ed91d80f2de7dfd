"""Opacus: hooks, functorch and ghost clipping, and PyTorch's ordinary step.

python with_torch.py TASK.json
"""

import sys
from typing import Any

import numpy as np
import torch
from protocol import Task, answer, read_task
from torch import nn

torch.manual_seed(0)


class CNN(nn.Module):
    """The tutorials' convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        self.conv0, self.conv1 = nn.Conv2d(1, 16, 8, 2), nn.Conv2d(16, 32, 4, 2)
        self.dense0, self.dense1 = nn.Linear(512, 32), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.pad(x, (3, 3, 3, 3))
        x = nn.functional.max_pool2d(torch.tanh(self.conv0(x)), 2, 1)
        x = nn.functional.max_pool2d(torch.tanh(self.conv1(x)), 2, 1)
        x = x.permute(0, 2, 3, 1).reshape(len(x), -1)
        return self.dense1(torch.tanh(self.dense0(x)))


class MLP(nn.Module):
    """784 - 1024 - 1024 - 10."""

    def __init__(self) -> None:
        super().__init__()
        self.dense0, self.dense1, self.dense2 = nn.Linear(784, 1024), nn.Linear(1024, 1024), nn.Linear(1024, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dense2(torch.relu(self.dense1(torch.relu(self.dense0(x)))))


MODELS = {"cnn": CNN, "mlp": MLP}


def to_torch(name: str, array: np.ndarray) -> torch.Tensor:
    """A canonical array as PyTorch lays it out."""
    if array.ndim == 4:
        array = array.transpose(3, 2, 0, 1)
    elif array.ndim == 2:
        array = array.T
    return torch.tensor(np.ascontiguousarray(array))


def to_canonical(tensor: torch.Tensor) -> np.ndarray:
    """The inverse of `to_torch`."""
    array = tensor.detach().cpu().numpy()
    if array.ndim == 4:
        return array.transpose(2, 3, 1, 0)
    return array.T if array.ndim == 2 else array


def canonical_name(name: str) -> str:
    layer, kind = name.removeprefix("_module.").rsplit(".", 1)
    return f"{layer}/{'kernel' if kind == 'weight' else 'bias'}"


def main(task: Task) -> None:
    """Do the task."""
    torch.set_num_threads(task.threads)
    model = MODELS[task.workload]()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(to_torch(name, task.weights[canonical_name(name)]))
    inputs = torch.tensor(task.inputs)
    if inputs.ndim == 4:
        inputs = inputs.permute(0, 3, 1, 2).contiguous()
    labels = torch.tensor(task.labels.astype(np.int64))
    plain_optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    if task.mode == "plain":

        def gradient() -> None:
            plain_optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels, reduction="sum").backward()

        def step() -> None:
            gradient()
            plain_optimizer.step()

        gradient()
        found = {canonical_name(name): to_canonical(p.grad) for name, p in model.named_parameters()}
        answer(task, found, {"clipped": gradient, "step": step})
        return
    private(task, model, inputs, labels)


def private(task: Task, model: Any, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    """Opacus's clipped sum and private step."""
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    common = {
        "noise_multiplier": task.noise_multiplier,
        "max_grad_norm": task.clip_norm,
        "expected_batch_size": len(labels),
    }
    if task.mode == "ghost":
        wrapped = GradSampleModuleFastGradientClipping(
            model, max_grad_norm=task.clip_norm, use_ghost_clipping=True, loss_reduction="sum"
        )
        optimizer = DPOptimizerFastGradientClipping(
            torch.optim.SGD(wrapped.parameters(), lr=1e-4), **common, loss_reduction="sum"
        )
        criterion = DPLossFastGradientClipping(
            wrapped, optimizer, nn.CrossEntropyLoss(reduction="sum"), loss_reduction="sum"
        )

        def clipped() -> None:
            optimizer.zero_grad()
            criterion(wrapped(inputs), labels).backward()

        def total(parameter: Any) -> torch.Tensor:
            return parameter.grad

    else:
        wrapped = GradSampleModule(model, loss_reduction="sum", force_functorch=task.mode == "functorch")
        optimizer = DPOptimizer(torch.optim.SGD(wrapped.parameters(), lr=1e-4), **common, loss_reduction="sum")

        def clipped() -> None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(wrapped(inputs), labels, reduction="sum").backward()
            optimizer.clip_and_accumulate()

        def total(parameter: Any) -> torch.Tensor:
            return parameter.summed_grad

    def step() -> None:
        optimizer.zero_grad()
        if task.mode == "ghost":
            criterion(wrapped(inputs), labels).backward()
        else:
            nn.functional.cross_entropy(wrapped(inputs), labels, reduction="sum").backward()
        optimizer.step()

    clipped()
    found = {canonical_name(name): to_canonical(total(p)) for name, p in wrapped.named_parameters()}
    answer(task, found, {"clipped": clipped, "step": step})


if __name__ == "__main__":
    main(read_task(sys.argv[1]))
