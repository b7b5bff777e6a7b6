"""Masks built from positions and from data, by compiled C++."""

from same.masks import *  # noqa: F403
