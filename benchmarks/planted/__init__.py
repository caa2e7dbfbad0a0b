"""Bottlenecks that are planted on purpose, and whether the tuner's verdict names them."""
