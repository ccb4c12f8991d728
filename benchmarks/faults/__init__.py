"""Faults on purpose: killed processes, damaged files, lost workers; and the judges of the outcome."""
