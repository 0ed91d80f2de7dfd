"""The three-epoch walk-through of TF Privacy, for as many steps as asked: its model, its optimizer, Keras's `fit`.

    python tutorial_tf_privacy.py RECORDS.npz STEPS

RECORDS.npz holds images float32 [n, 28, 28, 1] and labels [n], test_images and test_labels. Prints one line of JSON: seconds of
each step, seconds of the evaluation, and the accuracy it gave.
"""

import json
import os
import sys
import time
from typing import Any

import numpy as np

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
import tensorflow_privacy

BATCH_SIZE = 250


class Clock(tf.keras.callbacks.Callback):
    """When each step ended."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.times = [time.perf_counter()]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.times.append(time.perf_counter())


def main() -> None:
    """Train, evaluate, print."""
    records, steps = np.load(sys.argv[1]), int(sys.argv[2])
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Conv2D(16, 8, strides=2, padding="same", activation="relu", input_shape=(28, 28, 1)),
            layers.MaxPool2D(2, 1),
            layers.Conv2D(32, 4, strides=2, padding="valid", activation="relu"),
            layers.MaxPool2D(2, 1),
            layers.Flatten(),
            layers.Dense(32, activation="relu"),
            layers.Dense(10),
        ]
    )
    optimizer = tensorflow_privacy.DPKerasSGDOptimizer(
        l2_norm_clip=1.5, noise_multiplier=1.3, num_microbatches=BATCH_SIZE, learning_rate=0.25
    )
    loss = tf.keras.losses.CategoricalCrossentropy(from_logits=True, reduction=tf.losses.Reduction.NONE)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    targets = tf.keras.utils.to_categorical(records["labels"], 10)
    rows, clock = steps * BATCH_SIZE, Clock()
    model.fit(records["images"][:rows], targets[:rows], batch_size=BATCH_SIZE, callbacks=[clock], verbose=0)
    started = time.perf_counter()
    test_targets = tf.keras.utils.to_categorical(records["test_labels"], 10)
    _, accuracy = model.evaluate(records["test_images"], test_targets, batch_size=BATCH_SIZE, verbose=0)
    evaluation = time.perf_counter() - started
    print(json.dumps({"steps": np.diff(clock.times).tolist(), "evaluation": evaluation, "accuracy": accuracy}))


if __name__ == "__main__":
    main()
