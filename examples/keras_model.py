"""A Keras model, trained by `mtf_hetero.keras.fit` on two unequal devices, and evaluated by Keras alone.

    python examples/keras_model.py

trains a small network to say which half of an image is brighter, its batches of 32 divided 3 : 1 over two logical
devices of one CPU. It prints the last accuracy of the training on images that it was not trained on, and what Keras
says of the model afterwards:

    while it was trained: 0.98
    by Keras alone: 0.98
"""

import keras
import numpy as np

import mtf_hetero.keras

keras.utils.set_random_seed(1)
images = np.random.default_rng(1).normal(size=(4000, 8, 8, 1)).astype("float32")
labels = images[:, :, :4].sum((1, 2, 3)) > images[:, :, 4:].sum((1, 2, 3))
model = keras.Sequential([keras.layers.Conv2D(8, 3), keras.layers.Flatten(), keras.layers.Dense(1, "sigmoid")])
model.build(images.shape)
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])

seen, unseen = (images[:3000], labels[:3000]), (images[3000:], labels[3000:])
place = {"devices": ["cpu:0", "cpu:1"], "layout": "batch", "list_speed": [3, 1]}  # layout="auto" measures and plans
history = mtf_hetero.keras.fit(model, seen, epochs=10, validation_data=unseen, verbose=0, **place)

accuracy = model.evaluate(*unseen)[1]
print(f"while it was trained: {history.history['val_accuracy'][-1]:.2f}")
print(f"by Keras alone: {accuracy:.2f}")
