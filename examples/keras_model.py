"""Train a Keras model on two unequal devices with `mtf_hetero.keras.fit`, and evaluate it with Keras alone.

    python examples/keras_model.py

The network learns which half of an image is brighter. Its batches of 32 are split 3 : 1 over two logical devices of
one CPU. The program prints the accuracy on unseen images twice: at the end of the training, and as Keras evaluates the
model afterwards.

    at the end of the training: 0.98
    evaluated by Keras alone: 0.98
"""

import mtf_hetero.keras  # before Keras: so TensorFlow starts without its messages

import keras  # isort: skip
import numpy as np  # isort: skip

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
print(f"at the end of the training: {history.history['val_accuracy'][-1]:.2f}")
print(f"evaluated by Keras alone: {accuracy:.2f}")
