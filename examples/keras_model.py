"""A Keras model, trained by `mtf_hetero.keras.fit` on two unequal devices, and evaluated by Keras alone.

    python examples/keras_model.py

trains a small network on stripes that lie or stand, its batches of 64 divided 3 : 1 over two logical devices of one
CPU. It prints the last validation of the training, and what Keras says of the model afterwards:

    while it was trained: 0.96
    by Keras alone: 0.96
"""

import keras
import numpy as np

import mtf_hetero.keras

keras.utils.set_random_seed(1)
numbers = np.random.default_rng(1)
stands = numbers.integers(0, 2, 2000)
stripes = np.sin(np.arange(12) + numbers.uniform(0, 6, (2000, 1)))[:, :, None] + numbers.normal(0, 1.5, (2000, 12, 12))
images = np.where(stands[:, None, None], stripes, stripes.transpose(0, 2, 1))[..., None].astype("float32")

model = keras.Sequential(
    [
        keras.Input((12, 12, 1)),
        keras.layers.Conv2D(8, 5, activation="relu"),
        keras.layers.GlobalMaxPooling2D(),
        keras.layers.Dense(2, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
history = mtf_hetero.keras.fit(
    model,
    (images[:1500], stands[:1500]),
    epochs=8,
    batch_size=64,
    validation_data=(images[1500:], stands[1500:]),
    devices=["cpu:0", "cpu:1"],  # or workers="10.0.0.7:2222,10.0.0.8:2222"
    layout="batch",  # or "auto", which measures and plans
    list_speed=[3, 1],
    verbose=0,
)
_, accuracy = model.evaluate(images[1500:], stands[1500:])
print(f"while it was trained: {history.history['val_accuracy'][-1]:.2f}")
print(f"by Keras alone: {accuracy:.2f}")
