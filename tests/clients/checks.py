"""What the Python checks of the decision endpoints share."""

import sys
import traceback

STATE = {"ticket": "I was charged twice and nobody answers my mails.", "tier": "gold", "open_tickets": 2}


def choice_confidence(probabilities):
    """TypeSafe's formula: the top probability, from uniform (0) to certain (1)."""
    uniform = 1 / len(probabilities)
    return 1.0 if len(probabilities) == 1 else (max(probabilities) - uniform) / (1 - uniform)


def score_confidence(probabilities):
    """TypeSafe's formula: the mean distance from the mode, from that of uniform levels (0) to none (1)."""
    count = len(probabilities)
    if count == 1:
        return 1.0
    mode = probabilities.index(max(probabilities))
    spread = sum(p * abs(level - mode) for level, p in enumerate(probabilities))
    uniform = sum(abs(level - (count - 1) / 2) for level in range(count)) / count
    return max(0.0, 1 - spread / uniform)


def close(measured, expected, tolerance=1e-4):
    assert abs(measured - expected) <= tolerance, (measured, expected)


def is_distribution(probabilities):
    assert all(0 <= p <= 1 for p in probabilities), probabilities
    close(sum(probabilities), 1)


def refused(kind, action):
    try:
        action()
    except kind as error:
        return error
    raise AssertionError(f"{kind} expected")


def run(checks, client):
    """Runs every check, prints a line for each, and ends the program with status 1 if one failed."""
    failed = 0
    for check in checks:
        try:
            check()
            print("ok", check.__name__)
        except Exception:
            traceback.print_exc(file=sys.stdout)
            print("not ok", check.__name__)
            failed += 1
    print(f"{len(checks) - failed} of {len(checks)} checks passed with {client}")
    sys.exit(1 if failed else 0)


def formulas_agree_with_the_official_adapter():
    for probabilities, expected in [([0.84, 0.159, 0.001], 0.76), ([0.7, 0.2, 0.1], 0.55), ([0.25] * 4, 0), ([1.0], 1)]:
        close(choice_confidence(probabilities), expected)
    for probabilities, expected in [
        ([0.1, 0.8, 0.1], 0.7),
        ([0.5, 0.0, 0.5], 0),
        ([0.05, 0.1, 0.2, 0.4, 0.25], 1 / 3),
        ([0.3, 0.7], 0.4),
    ]:
        close(score_confidence(probabilities), expected)
