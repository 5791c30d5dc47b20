"""Checks metrics.py on examples computed by hand, and eval.py on a made-up server."""

import json
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import eval as program
from metrics import Row, accuracy, brier, calibration_error, flip_rate, majority, percentile

ROWS = [
    Row("a", {"a": 0.9, "b": 0.1}),
    Row("b", {"a": 0.8, "b": 0.2}),
    Row("b", {"a": 0.25, "b": 0.75}),
    Row("b", {"a": 0.5, "b": 0.5}),
]


def close(measured, expected):
    assert abs(measured - expected) < 1e-12, (measured, expected)


def accuracy_counts_the_unanswered_as_wrong():
    close(accuracy(ROWS), 2 / 4)
    close(accuracy([*ROWS, Row("a", None)]), 2 / 5)
    assert accuracy([]) is None


def the_majority_is_the_most_frequent_truth():
    close(majority(ROWS), 3 / 4)


def calibration_error_weighs_bins():
    # Bins of [.9, 1], [.8, .9), [.7, .8), [.5, .6), a row each.
    close(calibration_error(ROWS), (0.1 + 0.8 + 0.25 + 0.5) / 4)
    same_bin = [Row("a", {"a": 0.62, "b": 0.38}), Row("b", {"a": 0.68, "b": 0.32})]
    close(calibration_error(same_bin), 0.65 - 0.5)
    close(calibration_error([Row("a", {"a": 1.0, "b": 0.0})]), 0)
    assert calibration_error([Row("a", None)]) is None


def brier_sums_over_outcomes():
    close(brier(ROWS), (2 * 0.1**2 + 2 * 0.8**2 + 2 * 0.25**2 + 2 * 0.5**2) / 4)
    close(brier([Row("a", {"a": 0.0, "b": 1.0, "c": 0.0})]), 2)
    close(brier([Row("b", {"a": 0.2, "b": 0.7, "c": 0.1}), Row("a", None)]), 0.04 + 0.09 + 0.01)


def flips_are_changed_answers():
    unsure = Row("a", None)
    close(flip_rate([(ROWS[0], ROWS[1]), (ROWS[0], ROWS[2]), (ROWS[0], unsure)]), 1 / 2)
    assert flip_rate([]) is None


def percentiles_are_of_the_nearest_rank():
    assert [percentile([5, 1, 4, 2, 3], percent) for percent in [0, 20, 50, 95, 100]] == [1, 1, 3, 5, 5]
    assert percentile(range(1, 101), 95) == 95
    assert percentile([], 50) is None


class FirstOption(BaseHTTPRequestHandler):
    """Prefers the first option and level, says yes, and refuses every third request once."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    requests = 0

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        FirstOption.requests += 1
        if FirstOption.requests % 3 == 0:
            return self.send(529, {"detail": {}})
        self.send(200, {"model": "first", "answers": {id: self.answer(q) for id, q in body["questions"].items()}})

    def answer(self, question):
        if question["type"] == "noul":
            return {"type": "noul", "noul": 0.7}
        names = list(question["criteria"]) if question["type"] == "choice" else range(len(question["criteria"]))
        rest = 0.4 / (len(names) - 1)
        return {"probabilities": {str(name): 0.6 if place == 0 else rest for place, name in enumerate(names)}}

    def send(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.send_header("retry-after-ms", "1")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


def a_server_that_takes_the_first_option_flips_always():
    server = ThreadingHTTPServer(("127.0.0.1", 0), FirstOption)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.json"
        address = f"http://127.0.0.1:{server.server_port}"
        program.main([address, "--task", "support_tickets", "--n", "20", "--concurrency", "4", "--json", str(path)])
        report = json.loads(path.read_text())
    server.shutdown()
    rows = {row["question"]: row for row in report["rows"] if row["task"] == "support_tickets"}
    assert report["model"] == "first" and set(rows) == {"queue", "is_angry", "priority"}, report
    assert rows["queue"]["flips"] == 1 and rows["priority"]["flips"] is None
    angry = rows["is_angry"]
    assert angry["n"] == 20 and angry["unanswered"] == 0
    close(angry["ece"], abs(0.7 - angry["accuracy"]))
    share = angry["accuracy"]
    close(angry["brier"], share * 2 * 0.3**2 + (1 - share) * 2 * 0.7**2)


def main():
    checks = [
        accuracy_counts_the_unanswered_as_wrong,
        the_majority_is_the_most_frequent_truth,
        calibration_error_weighs_bins,
        brier_sums_over_outcomes,
        flips_are_changed_answers,
        percentiles_are_of_the_nearest_rank,
        a_server_that_takes_the_first_option_flips_always,
    ]
    for check in checks:
        check()
        print("ok", check.__name__)


if __name__ == "__main__":
    sys.exit(main())
