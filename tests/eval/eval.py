"""Measures the decisions of a System One server on the tasks of `sys1bench`: eval.py ADDRESS [OPTION…]; see --help.

Each item is asked with all its questions in one request, and where it has a choice, once more with the options of its
choices reversed.
"""

import argparse
import http.client
import json
import sys
import threading
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from metrics import Row, accuracy, brier, calibration_error, flip_rate, majority, percentile
from sys1bench.generators import GENERATORS, get_generator

BUSY = (429, 503, 529)
MOST_TRIES = 20
COLUMNS = ["task", "question", "type", "n", "accuracy", "majority", "ece", "brier", "flips", "p50_ms", "p95_ms", "unanswered"]


def main(arguments=None):
    options = parse(arguments)
    server = Server(options)
    rows, pooled = [], []
    for task in options.task:
        items = [question for question in measure(server, task, options)]
        pooled += items
        rows += [summary(task, key, group) for key, group in grouped(items, lambda it: it.key).items()]
    rows += [summary("all", f"every {kind}", group) for kind, group in grouped(pooled, lambda it: it.kind).items()]
    report = {
        "model": server.model,
        "n": options.n,
        "seed": options.seed,
        "concurrency": options.concurrency,
        "separate": options.separate,
        "rows": rows,
    }
    print(f"\n{server.model}: {options.n} items a task, seed {options.seed}, {options.concurrency} at once")
    print(text_table(rows))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(markdown_table(rows))
    if server.failures:
        print(f"{len(server.failures)} requests failed; the first: {server.failures[0]}", file=sys.stderr)


def parse(arguments):
    parser = argparse.ArgumentParser(prog="eval")
    parser.add_argument("address", help="the server's root, such as http://127.0.0.1:8000")
    parser.add_argument("--task", nargs="+", choices=sorted(GENERATORS), default=sorted(GENERATORS), metavar="NAME",
                        help=f"of {', '.join(sorted(GENERATORS))}; all if left out")
    parser.add_argument("--n", type=int, default=100, help="items of each task; 100")
    parser.add_argument("--seed", type=int, default=7, help="of the generators; 7")
    parser.add_argument("--concurrency", type=int, default=1, help="requests at once; 1")
    parser.add_argument("--separate", action="store_true", help="ask each question in a request of its own")
    parser.add_argument("--model", default="jev-latest")
    parser.add_argument("--key", help="the server's API key")
    parser.add_argument("--body", type=json.loads, default={}, metavar="JSON",
                        help='more fields of each request, such as \'{"x_permutations": 4}\'')
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    return parser.parse_args(arguments)


@dataclass
class Answered:
    """One question of one item."""

    key: str
    kind: str
    row: Row
    reversed: Row | None
    seconds: float


def measure(server, task, options):
    items = get_generator(task, n=options.n, seed=options.seed).generate()
    requests = [(item.state, questions) for item in items for questions in split(item.questions, options.separate)]
    with ThreadPoolExecutor(options.concurrency) as pool:
        for done, answers in enumerate(pool.map(lambda request: ask(server, *request), requests), 1):
            if done % 50 == 0 or done == len(requests):
                print(f"{task}: {done} of {len(requests)}", file=sys.stderr)
            yield from answers


def split(questions, separate):
    return [{key: question} for key, question in questions.items()] if separate else [questions]


def ask(server, state, questions):
    answers, seconds = server.answers(state, {key: asked(question) for key, question in questions.items()})
    turned = {}
    if any(question.type == "choice" for question in questions.values()):
        turned, _ = server.answers(state, {key: asked(question, True) for key, question in questions.items()})
    return [
        Answered(
            key,
            question.type,
            row(question, answers.get(key)),
            row(question, turned.get(key)) if question.type == "choice" else None,
            seconds,
        )
        for key, question in questions.items()
    ]


def asked(question, is_reversed=False):
    """A question as the server takes it, with the options of a choice reversed if asked for."""
    sent = {"type": question.type, "instructions": question.instructions}
    if question.type == "choice":
        options = [(option.key, option.description or None) for option in question.criteria]
        if question.allow_abstain:
            options.append((question.abstain_key, "None of the listed options applies."))
        sent["criteria"] = dict(reversed(options) if is_reversed else options)
    elif question.type == "score":
        sent["criteria"] = [level.description or f"level {level.level}" for level in question.criteria]
    return sent


def row(question, answer):
    truth = str(question.ground_truth).lower() if question.type == "noul" else str(question.ground_truth)
    if answer is None:
        return Row(truth, None)
    if question.type == "noul":
        return Row(truth, {"true": answer["noul"], "false": 1 - answer["noul"]})
    found = answer["probabilities"]
    if question.type == "score":
        return Row(truth, {str(level.level): found[str(place)] for place, level in enumerate(question.criteria)})
    return Row(truth, {name: found[name] for name in asked(question)["criteria"]})


class Server:
    """Connections to a server, one for each thread, kept open."""

    def __init__(self, options):
        self.address = urllib.parse.urlsplit(options.address)
        self.options = options
        self.own = threading.local()
        self.model = "?"
        self.failures = []

    def answers(self, state, questions):
        """The answers by question, none if the request failed, and the seconds that the last try took."""
        body = {"model": self.options.model, "state": state, "questions": questions, **self.options.body}
        for _ in range(MOST_TRIES):
            begin = time.perf_counter()
            status, headers, data = self.post(json.dumps(body).encode())
            seconds = time.perf_counter() - begin
            if status == 200:
                found = json.loads(data)
                self.model = found["model"]
                return found["answers"], seconds
            if status not in BUSY:
                break
            time.sleep(float(headers.get("retry-after-ms") or 1000) / 1000)
        self.failures.append(f"{status} {data[:300]}")
        return {}, seconds

    def post(self, data):
        headers = {"content-type": "application/json"}
        if self.options.key:
            headers["authorization"] = f"Bearer {self.options.key}"
        for is_last_try in (False, True):
            connection = getattr(self.own, "connection", None) or self.connect()
            try:
                connection.request("POST", "/v1/systemone", data, headers)
                response = connection.getresponse()
                return response.status, response.headers, response.read()
            except (http.client.HTTPException, ConnectionError):
                # A kept connection may have been closed by the other side meanwhile.
                connection.close()
                self.own.connection = None
                if is_last_try:
                    raise

    def connect(self):
        kind = http.client.HTTPSConnection if self.address.scheme == "https" else http.client.HTTPConnection
        self.own.connection = kind(self.address.hostname, self.address.port, timeout=600)
        return self.own.connection


def grouped(items, key):
    groups = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def summary(task, name, answered):
    rows = [item.row for item in answered]
    times = [item.seconds * 1000 for item in answered if item.row.probabilities]
    return {
        "task": task,
        "question": name,
        "type": answered[0].kind,
        "n": len(rows),
        "accuracy": accuracy(rows),
        "majority": majority(rows) if task != "all" else None,
        "ece": calibration_error(rows),
        "brier": brier(rows),
        "flips": flip_rate([(item.row, item.reversed) for item in answered if item.reversed]),
        "p50_ms": percentile(times, 50),
        "p95_ms": percentile(times, 95),
        "unanswered": sum(row.probabilities is None for row in rows),
    }


def cells(row):
    def shown(name):
        value = row[name]
        if value is None:
            return "-"
        if isinstance(value, float):
            return f"{value:.1f}" if name.endswith("_ms") else f"{value:.3f}"
        return str(value)

    return [shown(name) for name in COLUMNS]


def text_table(rows):
    lines = [COLUMNS, *map(cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def markdown_table(rows):
    lines = [COLUMNS, ["---"] * len(COLUMNS), *map(cells, rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    main()
