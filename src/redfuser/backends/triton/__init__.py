"""Prints tile programs as Triton kernels, and launches them."""
