"""The product's own path: ``fuse`` on CPU tensors runs compiled C++."""

from same.product import *  # noqa: F403
