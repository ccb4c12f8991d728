"""Measurements: one frozen case per table or figure, a runner that stores rows with provenance, and reports.

python -m benchmarks.run --list
python -m benchmarks.run one_device
python -m benchmarks.report
"""
