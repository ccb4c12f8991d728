"""The program that trains a model of `MODELS` under a layout: `mtf-hetero train`."""
