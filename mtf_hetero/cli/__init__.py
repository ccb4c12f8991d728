"""The programs behind `mtf-hetero COMMAND`: each module has a `run` that ends the process with an exit code."""
