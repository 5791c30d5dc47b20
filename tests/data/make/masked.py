"""Denoising of masked positions: candidates, selection, and how close each decision came to its boundary.

Candidates and confidences come from softmax(logits / temperature) with the mask's logit at minus infinity; at
temperature 0 the candidate is the likeliest token (the lowest id on ties) and the divisor 1. Confidence is the
candidate's probability. A chosen position takes its candidate and never changes again.
"""
import numpy as np

from numerics import SplitMix64, inverse_cdf, softmax


class ByCount:
    """The k most confident masked positions, the lower on ties: masks / steps each step, remainders first."""

    def __init__(self, masks, steps):
        self.counts = [masks // steps + (step < masks % steps) for step in range(steps)]

    def choose(self, confidence):
        order = sorted(confidence, key=lambda i: (-confidence[i], i))
        k = self.counts.pop(0)
        ranked = [confidence[i] for i in order] + [-np.inf]
        return sorted(order[:k]), ranked[k - 1] - ranked[k]


class ByThreshold:
    """Masked positions at least as confident as the threshold; the most confident one if there are none."""

    def __init__(self, threshold):
        self.threshold = threshold

    def choose(self, confidence):
        chosen = sorted(i for i, p in confidence.items() if p >= self.threshold)
        margin = min(abs(p - self.threshold) for p in confidence.values())
        if chosen:
            return chosen, margin
        best, chosen_margin = ByCount(1, 1).choose(confidence)
        return best, min(margin, chosen_margin)


class Denoiser:
    """Revises one block at a time; `margin` is the least distance of any decision so far to its boundary."""

    def __init__(self, mask, temperature=0.0, seed=None):
        self.mask, self.temperature = mask, temperature
        self.random = SplitMix64(seed) if temperature else None
        self.margin = np.inf

    def denoise(self, tokens, forward, rule):
        """Steps until no token of the block is a mask; `forward(tokens)` gives the block's logits [n, V]."""
        steps = []
        while self.mask in tokens:
            step = {"tokens_in": tokens}
            units = [self.random.unit() for _ in tokens] if self.random else None
            if units:
                step["u"] = units
            candidate, confidence = self.candidates(tokens, forward(tokens), units)
            chosen, margin = rule.choose(confidence)
            self.margin = min(self.margin, margin)
            tokens = [candidate[i] if i in chosen else token for i, token in enumerate(tokens)]
            step["candidate"] = [candidate.get(i) for i in range(len(tokens))]
            step["confidence"] = [round(confidence[i], 7) if i in confidence else None for i in range(len(tokens))]
            steps.append(step | {"chosen": chosen, "tokens_out": tokens})
        return steps

    def candidates(self, tokens, logits, units):
        candidate, confidence = {}, {}
        for i in (i for i, token in enumerate(tokens) if token == self.mask):
            row = logits[i].astype(np.float64) / (self.temperature or 1)
            row[self.mask] = -np.inf
            probabilities = softmax(row)
            if units:
                candidate[i], margin = inverse_cdf(probabilities, units[i])
            else:
                candidate[i] = int(row.argmax())
                margin = np.diff(np.partition(row, -2)[-2:])[0]
            self.margin = min(self.margin, margin)
            confidence[i] = float(probabilities[candidate[i]])
        return candidate, confidence
