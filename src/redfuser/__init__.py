"""Proves that chains of dependent reductions in plain PyTorch functions fuse into one pass, and fuses them."""
