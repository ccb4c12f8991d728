"""Unequal workers on one machine, for trials and tests: processes whose processor time the kernel limits."""
