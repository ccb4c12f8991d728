"""The best layout for a graph and a set of unequal devices: found, shown and explained before anything runs."""
