"""Comparisons of fused functions with what else PyTorch offers: ``python -m benchmarks.run --help``."""
