"""The arithmetic that the networks share, and the traces' source of randomness."""
import numpy as np


def rms_norm(x, eps, weight=None):
    y = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    return y if weight is None else y * weight


def silu(x):
    return x / (1 + np.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def rotate(x, positions, frequencies):
    """Rotary embedding of x [T, heads, d]: dimension i turns with i + d/2 by position * frequency i."""
    angle = np.asarray(positions)[:, None, None] * frequencies
    cos, sin = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def attend(q, k, v, visible, scale):
    """q [T, H, d], k and v [S, K, d], visible [T, S] -> [T, H * d]; query head h reads KV head h // (H / K)."""
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("thd,shd->hts", q, k) * scale
    weights = softmax(np.where(visible, scores, -np.inf))
    return np.einsum("hts,shd->thd", weights, v).reshape(len(q), -1)


class SplitMix64:
    """A 64-bit generator of Steele, Lea and Flood."""

    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) % 2**64
        z = self.state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return z ^ z >> 31

    def token(self, vocab):
        """Uniform in 0..vocab."""
        return (self.next() >> 32) * vocab >> 32

    def unit(self):
        """Uniform in [0, 1), a multiple of 2^-24."""
        return (self.next() >> 40) / 2**24


def inverse_cdf(probabilities, unit):
    """First index whose cumulative sum (float64) reaches unit * total, and the distance to the nearest boundary."""
    cumulative = np.cumsum(probabilities.astype(np.float64))
    cumulative /= cumulative[-1]
    index = min(int(np.count_nonzero(cumulative < unit)), len(cumulative) - 1)
    return index, float(np.abs(cumulative[:-1] - unit).min())
