"""Augmentation and normalization of whole batches on their device, with parameters of their own for each sample."""

from __future__ import annotations
