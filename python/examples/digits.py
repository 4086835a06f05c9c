"""Learns to read handwritten digits: the same model, numbers and accuracy as `cargo run --release --example digits`.

    python digits.py [--epochs 30] [--seed 7] [--lr 0.004] [--autocast bfloat16] [--plot digits.png]
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import pathlib
from typing import Any

import numpy as np

import bilin as bl

DATA = pathlib.Path(__file__).parents[2] / "crates/bilin/examples/data/digits.csv.gz"
HIDDEN, BATCH = 128, 64


class Model:
    """64 pixels → 128 hidden units → 10 classes; weights of variance 2/inputs and zero biases."""

    def __init__(self, rng: bl.Rng) -> None:
        self.w1, self.b1 = self.layer(rng, 64, HIDDEN)
        self.w2, self.b2 = self.layer(rng, HIDDEN, 10)

    @staticmethod
    def layer(rng: bl.Rng, inputs: int, outputs: int) -> tuple[bl.Tensor, bl.Tensor]:
        weight = (rng.randn((inputs, outputs)) * (2.0 / inputs) ** 0.5).requires_grad_()
        return weight, bl.zeros(outputs).requires_grad_()

    def parameters(self) -> list[bl.Tensor]:
        return [self.w1, self.b1, self.w2, self.b2]

    def logits(self, x: bl.Tensor) -> bl.Tensor:
        return bl.relu(x @ self.w1 + self.b1) @ self.w2 + self.b2


def read() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Pixels in [0, 1] and classes."""
    with gzip.open(DATA, "rt") as file:
        rows = np.array([[int(float(cell)) for cell in row] for row in csv.reader(file)])
    return (rows[:, :64] / 16).astype(np.float32), rows[:, 64]


def train(epochs: int, seed: int, lr: float, autocast: str | None) -> tuple[Model, list[tuple[float, float, float]], Any]:
    """The model; training loss, loss and accuracy on the digits held back for each epoch; the digits held back."""
    pixels, classes = read()
    rng = bl.Rng(seed)
    order = rng.permutation(len(pixels)).numpy()
    held, kept = order[: len(order) // 5], order[len(order) // 5 :]
    x, y = bl.asarray(pixels[kept]), bl.asarray(classes[kept])
    held_x, held_y = bl.asarray(pixels[held]), bl.asarray(classes[held])
    model = Model(rng)
    optimizer = bl.optim.AdamW(model.parameters(), lr=lr)
    steps, history = -(-len(kept) // BATCH), []
    for epoch in range(epochs):
        shuffled, total = rng.permutation(len(kept)), 0.0
        for step in range(steps):
            rows = shuffled[step * BATCH : (step + 1) * BATCH]
            with bl.amp.autocast(autocast) if autocast else contextlib.nullcontext():
                loss = bl.cross_entropy(model.logits(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.lr = lr * (1 - (epoch * steps + step) / (epochs * steps))
            optimizer.step()
            total += loss.item() * len(rows)
        with bl.no_grad():
            logits = model.logits(held_x)
            accuracy = float(bl.mean((bl.argmax(logits, axis=-1) == held_y).astype(bl.float64)))
            history.append((total / len(kept), bl.cross_entropy(logits, held_y).item(), accuracy))
        print(f"epoch {epoch + 1:2}  training {history[-1][0]:.4f}  held back {history[-1][1]:.4f}  {100 * accuracy:.2f} % right")
    return model, history, (pixels[held], classes[held])


def plot(path: str, model: Model, history: list[tuple[float, float, float]], held: Any) -> None:
    """Losses, accuracy, and digits that are misread."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with bl.no_grad():
        read = bl.argmax(model.logits(bl.asarray(held[0])), axis=-1).numpy()
    wrong = np.flatnonzero(read != held[1])[:10]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    training, held_back, accuracy = zip(*history)
    axes[0].plot(training, label="training")
    axes[0].plot(held_back, label="held back")
    axes[0].set(xlabel="epoch", ylabel="loss", yscale="log")
    axes[0].legend()
    axes[1].imshow(np.hstack([held[0][i].reshape(8, 8) for i in wrong] or [np.zeros((8, 8))]), cmap="gray_r")
    axes[1].set_title(f"{100 * accuracy[-1]:.2f} % right; misread as {', '.join(str(read[i]) for i in wrong)}")
    axes[1].axis("off")
    figure.savefig(path)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> float:
    """Trains, and gives the share of the digits held back that is read right."""
    parser = argparse.ArgumentParser(description="Learns to read handwritten digits.")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--lr", type=float, default=0.004)
    parser.add_argument("--autocast")
    parser.add_argument("--plot")
    options = parser.parse_args(arguments)
    model, history, held = train(options.epochs, options.seed, options.lr, options.autocast)
    if options.plot:
        plot(options.plot, model, history, held)
    return history[-1][2]


if __name__ == "__main__":
    main()
