"""Encoded bytes: header facts, checks, augmentation parameters, and pixels on the CPU."""
