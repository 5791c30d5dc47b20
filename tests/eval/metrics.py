"""How good probabilities are. `Row`s in, numbers out; no dependencies."""

from dataclasses import dataclass

BINS = 10


@dataclass
class Row:
    """One question: its true outcome, and the probability of each outcome in their order, or None if it was not answered."""

    truth: str
    probabilities: dict[str, float] | None

    @property
    def top(self):
        """The most probable outcome; the first of equals."""
        return self.probabilities and max(self.probabilities, key=self.probabilities.get)

    @property
    def is_right(self):
        return self.top == self.truth


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else None


def accuracy(rows):
    """The share of right answers; no answer is a wrong one."""
    return mean(row.is_right for row in rows)


def majority(rows):
    """The accuracy of always saying what is true most often."""
    truths = [row.truth for row in rows]
    return max((truths.count(truth) / len(truths) for truth in set(truths)), default=None)


def calibration_error(rows):
    """ECE: the mean distance of top probability and accuracy over bins of equal width, weighed by their rows."""
    bins = [[] for _ in range(BINS)]
    answered = [row for row in rows if row.probabilities]
    for row in answered:
        bins[min(int(row.probabilities[row.top] * BINS), BINS - 1)].append(row)
    gaps = [
        len(rows) * abs(mean(row.probabilities[row.top] for row in rows) - accuracy(rows)) for rows in bins if rows
    ]
    return sum(gaps) / len(answered) if answered else None


def brier(rows):
    """The mean squared distance from the truth, summed over outcomes: 0 is best, 2 is worst."""
    return mean(
        sum((p - (outcome == row.truth)) ** 2 for outcome, p in row.probabilities.items())
        for row in rows
        if row.probabilities
    )


def flip_rate(pairs):
    """The share of answers that change between the two rows of a pair; pairs with an unanswered row are left out."""
    return mean(a.top != b.top for a, b in pairs if a.probabilities and b.probabilities)


def percentile(values, percent):
    """The smallest value that at least `percent` per cent of the values do not exceed."""
    values = sorted(values)
    return values[max(0, -(-len(values) * percent // 100) - 1)] if values else None
