"""Philox4x32-10: random numbers that are a function of (key, counter), for whole arrays at once.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). numpy's own Philox is the 64-bit
variant and makes one stream at a time; per-sample randomness needs one counter a sample, vectorised.
"""

from __future__ import annotations

import numpy as np

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)
_AT_ONCE = 1 << 16


def philox4x32(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Four 32-bit words for each counter.

    Args:
        counter: shape (n, 4), any unsigned integer dtype, values below 2**32.
        key: two words below 2**32.

    Returns:
        uint32 of shape (n, 4).
    """
    c0, c1, c2, c3 = (counter[:, i].astype(np.uint64) for i in range(4))
    k0, k1 = key
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (
            (p1 >> _SHIFT) ^ c1 ^ np.uint64(k0),
            p1 & _LOW,
            (p0 >> _SHIFT) ^ c3 ^ np.uint64(k1),
            p0 & _LOW,
        )
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def sample_words(seed: int, epoch: int, keys: np.ndarray, draw: int) -> np.ndarray:
    """Random words of draw number `draw` for each sample: a function of (seed, epoch, key, draw) alone.

    Args:
        keys: sample keys, shape (n,), below 2**64.

    Returns:
        uint32 of shape (n, 4).
    """
    keys = np.asarray(keys, dtype=np.uint64)
    counter = np.empty((len(keys), 4), dtype=np.uint64)
    counter[:, 0] = keys & _LOW
    counter[:, 1] = keys >> _SHIFT
    counter[:, 2] = np.uint64(epoch & 0xFFFFFFFF)
    counter[:, 3] = np.uint64(draw)
    return philox4x32(counter, (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF))


def sample_hash(seed: int, epoch: int, keys: np.ndarray, draw: int) -> np.ndarray:
    """64 random bits for each sample: the first two words of `sample_words`, in little memory.

    Returns:
        uint64 of shape (n,).
    """
    keys = np.asarray(keys, dtype=np.uint64)
    bits = np.empty(len(keys), dtype=np.uint64)
    # The generator takes some 100 bytes a sample while it works, which a million samples at once need not.
    for start in range(0, len(keys), _AT_ONCE):
        words = sample_words(seed, epoch, keys[start : start + _AT_ONCE], draw)
        bits[start : start + _AT_ONCE] = (words[:, 0].astype(np.uint64) << _SHIFT) | words[:, 1]
    return bits


def uniform(words: np.ndarray) -> np.ndarray:
    """float64 in [0, 1) from 32-bit words, exact in every bit."""
    return words.astype(np.float64) * 2.0**-32
