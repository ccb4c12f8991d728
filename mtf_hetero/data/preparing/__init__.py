"""Write sets of data before a training: prepared, converted from files, or simulated."""
