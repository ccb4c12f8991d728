"""The program that trains a model of `MODELS` under a layout: `python -m models.train`, `mtf-hetero train`."""
