"""The tutorial's teachers in PyTorch, as it trains them: a Python loop over teachers, a data loader for each.

    python benchmarks/peers/pate_torch.py RECORDS.npz TEACHERS EPOCHS BATCH_SIZE

RECORDS.npz holds images uint8 [n, 28, 28], labels [n], and test_images and test_labels. Prints one line of JSON: seconds and mean
accuracy. Needs torch and torchvision; benchmarks/offices.py runs it with the Python that has them.
"""

import json
import sys
import time

import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision import transforms


class Digits(Dataset):
    """Images as the tutorial's data set gives them: transformed one by one."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images, self.labels = images, labels
        self.transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5,), (0.5,))])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, at: int) -> tuple[torch.Tensor, int]:
        return self.transform(self.images[at][..., None]), int(self.labels[at])


class Classifier(nn.Module):
    """784 - 256 - 128 - 64 - 10."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in ((784, 256), (256, 128), (128, 64), (64, 10)))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = images.view(images.shape[0], -1)
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return torch.log_softmax(self.layers[-1](x), dim=1)


def main() -> None:
    """Train and print."""
    path, teachers, epochs, batch_size = sys.argv[1], *map(int, sys.argv[2:5])
    records = np.load(path)
    digits = Digits(records["images"], records["labels"])
    size = len(digits) // teachers
    loaders = [
        DataLoader(Subset(digits, list(range(i * size, (i + 1) * size))), batch_size=batch_size, shuffle=True)
        for i in range(teachers)
    ]
    started, models = time.perf_counter(), []
    for loader in loaders:
        model, criterion = Classifier(), nn.NLLLoss()
        optimizer = optim.Adam(model.parameters(), lr=1e-3)
        for _ in range(epochs):
            for images, labels in loader:
                optimizer.zero_grad()
                loss = criterion(model(images), labels)
                loss.backward()
                optimizer.step()
        models.append(model)
    seconds = time.perf_counter() - started
    images = torch.tensor(records["test_images"], dtype=torch.float32) / 127.5 - 1
    labels = torch.tensor(records["test_labels"])
    with torch.no_grad():
        accuracies = [float((model(images).argmax(dim=1) == labels).float().mean()) for model in models]
    print(json.dumps({"seconds": seconds, "accuracy": float(np.mean(accuracies)), "torch": torch.__version__}))


if __name__ == "__main__":
    main()
