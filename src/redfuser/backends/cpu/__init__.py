"""Tile programs as vectorised C++ for CPUs."""
