"""Masks built from positions and from data, under Triton's interpreter."""

from same.masks import *  # noqa: F403
