"""Load on a Laneway server, and clients that misbehave: load.py ADDRESS [API_KEY] [LANES] [QUEUE].

LANES and QUEUE are what the server was started with. Prints the figures of each load, then a line for every check.
"""

import asyncio
import json
import re
import socket
import statistics
import sys
import time
import urllib.parse

from checks import run

ADDRESS = urllib.parse.urlsplit(sys.argv[1])
KEY = sys.argv[2] if len(sys.argv) > 2 else ""
LANES = int(sys.argv[3]) if len(sys.argv) > 3 else 4
QUEUE = int(sys.argv[4]) if len(sys.argv) > 4 else 8 * LANES
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
# Small models count on until they are stopped.
COUNTING = "1, 2, 3, 4, 5, 6, 7, 8,"
ENDLESS = {"prompt": COUNTING, "max_tokens": 2000, "temperature": 0, "stream": True}
TOPICS = ["rain", "copper", "the moon", "bread", "a lighthouse", "chess"]
# What the engine may still do while the server learns that a client is gone; the answer had thousands to go.
STEPS_TO_NOTICE = 12
# Longer than the server waits for a request's head or for a reader.
PATIENCE = 45


class Connection:
    """One HTTP/1.1 request on a connection of its own."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.status, self.headers = None, {}

    @classmethod
    async def open(cls, path, body=None, method="POST", raw=None, slow=False):
        plain = socket.socket()
        plain.setblocking(False)
        if slow:
            # Small segments and a small window leave the server little room to write ahead.
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
        await asyncio.get_running_loop().sock_connect(plain, (ADDRESS.hostname, ADDRESS.port))
        connection = cls(*await asyncio.open_connection(sock=plain, limit=1 << 12 if slow else 1 << 20))
        payload = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        head = [f"{method} {path} HTTP/1.1", f"host: {ADDRESS.netloc}", "connection: close"]
        head += [f"authorization: Bearer {KEY}"] * bool(KEY)
        head += ["content-type: application/json", f"content-length: {len(payload)}"] * (body is not None)
        connection.writer.write(raw if raw is not None else "\r\n".join(head).encode() + b"\r\n\r\n" + payload)
        await connection.writer.drain()
        return connection

    async def head(self):
        status, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        self.status = int(status.split(" ")[1])
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        return self.status

    async def text(self):
        """The body to its end."""
        if self.status is None:
            await self.head()
        data = await self.reader.read()
        self.leave()
        if "chunked" in self.headers.get("transfer-encoding", ""):
            data = b"".join(unchunked(data))
        return data.decode()

    async def events(self):
        """Each server-sent event with the time at which it came; a line of chunk sizes is none."""
        if self.status is None:
            await self.head()
        while line := await self.reader.readline():
            if line.startswith(b"data: "):
                yield time.perf_counter(), line[6:].strip()
        self.leave()

    def leave(self):
        self.writer.transport.abort()


def unchunked(data):
    while data:
        size, _, rest = data.partition(b"\r\n")
        yield rest[: int(size, 16)]
        data = rest[int(size, 16) + 2 :]


async def request(path, body=None, method="POST", **options):
    connection = await Connection.open(path, body, method, **options)
    return connection, await connection.text()


async def figures():
    """Figures of the server by name; those of turns by their stage."""
    _, text = await request("/metrics", method="GET")
    found = dict(re.findall(r"^((?:vllm|laneway)\S*?)\{[^}]*\} (\S+)$", text, re.MULTILINE))
    stages = re.findall(r'^laneway_turns_total\{.*source="http",stage="(\w+)"\} (\d+)$', text, re.MULTILINE)
    turns = {stage: int(count) for stage, count in stages}
    return {
        "waiting": float(found["vllm:num_requests_waiting"]),
        "running": float(found["vllm:num_requests_running"]),
        "pages": float(found["vllm:kv_cache_usage_perc"]),
        "lanes": float(found["laneway_lanes_active"]),
        "steps": int(found["laneway_steps_total"]),
        "sampled": int(found["vllm:generation_tokens_total"]),
        **turns,
    }


async def until(holds, what):
    start = time.perf_counter()
    while not holds(now := await figures()):
        assert time.perf_counter() - start < PATIENCE, f"{what}: {now}"
        await asyncio.sleep(0.002)
    return now


async def at_rest():
    """Waits for the end of all work; then nothing is held and every turn is accounted for."""
    now = await until(lambda f: f["waiting"] + f["running"] + f["lanes"] == 0 and f["pages"] == 0, "not at rest")
    assert now["queued"] == now["started"] + now["rejected"], now
    assert now["started"] == now["finished"] + now["failed"], now
    return now


async def model():
    return json.loads((await request("/v1/models", method="GET"))[1])["data"][0]["id"]


async def endless(**settings):
    return await Connection.open(COMPLETIONS, {"model": await model(), **ENDLESS, **settings})


async def first_event(connection):
    async for _, event in connection.events():
        return json.loads(event)
    raise AssertionError("the answer ended without an event")


async def streamed(name, topic, tokens=24):
    """Status and times of one chat."""
    body = {
        "model": name,
        "messages": [{"role": "user", "content": f"Tell me something about {topic}."}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    start = time.perf_counter()
    connection = await Connection.open(CHAT, body)
    if await connection.head() != 200:
        return connection.status, await connection.text()
    times, usage, last = [], None, None
    async for at, event in connection.events():
        last = event
        if event == b"[DONE]":
            break
        event = json.loads(event)
        assert "error" not in event, event
        usage = event.get("usage") or usage
        if any(choice["delta"].get("content") for choice in event["choices"]):
            times.append(at)
    connection.leave()
    assert last == b"[DONE]" and times and usage, (last, usage)
    gaps = [b - a for a, b in zip(times, times[1:])]
    return 200, {"first": times[0] - start, "gaps": gaps, "tokens": usage["completion_tokens"]}


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


async def closed_loop(clients, rounds):
    """Figures of clients that ask again when they are answered."""
    name = await model()

    async def client(number):
        return [await streamed(name, f"{TOPICS[number % len(TOPICS)]} {clients} {turn}") for turn in range(rounds)]

    start = time.perf_counter()
    answers = sum(await asyncio.gather(*map(client, range(clients))), [])
    seconds = time.perf_counter() - start
    assert all(status == 200 for status, _ in answers), [answer for answer in answers if answer[0] != 200]
    tokens = sum(answer["tokens"] for _, answer in answers)
    first = [answer["first"] for _, answer in answers]
    gaps = [gap for _, answer in answers for gap in answer["gaps"]]
    return (
        f"N={clients}: {tokens / seconds:.0f} tokens/s, first token {1e3 * statistics.median(first):.0f} ms "
        f"(p95 {1e3 * percentile(first, 0.95):.0f}), between tokens {1e3 * statistics.median(gaps):.1f} ms "
        f"(p95 {1e3 * percentile(gaps, 0.95):.1f}), {len(answers)} answers"
    )


async def no_client_sees_an_error_under_load():
    for clients in [1, 2, 4, 8]:
        print(await closed_loop(min(clients, LANES + QUEUE), 4))
        await at_rest()


async def a_burst_over_the_queue_is_refused_with_429_and_nothing_else():
    before, name = await at_rest(), await model()
    body = {"model": name, "prompt": COUNTING, "max_tokens": 8, "temperature": 0}
    count = 3 * (LANES + QUEUE)
    answers = await asyncio.gather(*(request(COMPLETIONS, body) for _ in range(count)))
    refused = [(connection, text) for connection, text in answers if connection.status != 200]
    assert len(answers) - len(refused) >= QUEUE, f"only {len(answers) - len(refused)} of {count} were answered"
    assert refused, f"none of {count} was refused"
    for connection, text in refused:
        assert connection.status == 429 and int(connection.headers["retry-after"]) >= 1, (connection.status, text)
        assert json.loads(text)["error"]["message"]
    after = await at_rest()
    assert after["rejected"] - before["rejected"] == len(refused), (before, after)
    assert after["finished"] - before["finished"] == count - len(refused), (before, after)
    assert (await streamed(name, "rivers"))[0] == 200


async def leave(connections, holds, what):
    """Steps between the departure of these clients and the moment from which something holds."""
    before = await figures()
    for connection in connections:
        connection.leave()
    after = await until(holds, what)
    return after["steps"] - before["steps"]


async def leaving_in_the_middle_of_a_stream_frees_the_lane():
    before = await at_rest()
    steps = []
    for number in range(4):
        connection = await endless(seed=number)
        await first_event(connection)
        steps.append(await leave([connection], lambda f: f["running"] == 0, "the turn goes on"))
    await at_rest()
    together = [await endless() for _ in range(LANES)]
    await asyncio.gather(*map(first_event, together))
    steps.append(await leave(together, lambda f: f["running"] == 0, "the turns go on"))
    after = await at_rest()
    assert after["failed"] - before["failed"] == 4 + LANES, (before, after)
    print("steps after clients left their streams:", steps)
    assert max(steps) <= STEPS_TO_NOTICE, steps


async def leaving_before_a_whole_answer_frees_the_lane():
    await at_rest()
    connection = await endless(stream=False)
    start = await figures()
    await until(lambda f: f["sampled"] > start["sampled"], "nothing is generated")
    steps = await leave([connection], lambda f: f["running"] == 0, "the turn goes on")
    assert steps <= STEPS_TO_NOTICE, steps
    await at_rest()


async def leaving_during_prefill_frees_the_lane_without_a_token():
    before = await at_rest()
    # Numbers that no earlier prompt had: what is in the cache needs no prefill.
    words = " ".join(str(number * 7919 % 100_003) for number in range(1200))
    connection = await endless(prompt=f"{time.time_ns()} {words}")
    await until(lambda f: f["running"] == 1, "it does not start")
    steps = await leave([connection], lambda f: f["running"] == 0, "the turn goes on")
    after = await at_rest()
    assert after["failed"] - before["failed"] == 1, (before, after)
    assert after["sampled"] == before["sampled"], "it was answered before the client left"
    print("steps after a client left during prefill:", steps)
    assert steps <= STEPS_TO_NOTICE, steps


async def leaving_the_queue_frees_the_place():
    before, name = await at_rest(), await model()
    running = [await endless() for _ in range(LANES)]
    await asyncio.gather(*map(first_event, running))
    waiting = [await endless() for _ in range(QUEUE)]
    await until(lambda f: f["waiting"] == QUEUE, "the queue does not fill")
    body = {"model": name, "prompt": COUNTING, "max_tokens": 2}
    assert (await request(COMPLETIONS, body))[0].status == 429
    steps = await leave(waiting[:2], lambda f: f["waiting"] == QUEUE - 2, "they wait on")
    again = [await endless() for _ in range(2)]
    now = await until(lambda f: f["waiting"] == QUEUE, "the places are not free")
    assert now["running"] == LANES and now["rejected"] - before["rejected"] == 1, now
    for connection in running + waiting + again:
        connection.leave()
    after = await at_rest()
    # Those that wait may have started while others left, but none may have been answered.
    assert after["finished"] == before["finished"] and after["failed"] - before["failed"] == LANES + QUEUE + 2, after
    print("steps after clients left the queue:", steps)
    assert steps <= STEPS_TO_NOTICE, steps


async def bad_requests_are_told_why_and_cost_no_turn():
    before, name = await at_rest(), await model()
    message = [{"role": "user", "content": "x"}]
    bodies = [
        (400, b'{"messages": ['),
        (400, b"\xff\xfe"),
        (400, b""),
        (400, {"model": name}),
        (400, {"model": name, "messages": []}),
        (400, {"model": name, "messages": "x"}),
        (400, {"model": name, "messages": [{"role": "wizard", "content": "x"}]}),
        (400, {"model": name, "messages": [{"role": "user", "content": 5}]}),
        (400, {"model": name, "messages": message, "max_tokens": -1}),
        (400, {"model": name, "messages": message, "max_tokens": "ten"}),
        (400, {"model": name, "messages": message, "temperature": -1}),
        (400, {"model": name, "messages": message, "temperature": 1e9}),
        (400, {"model": name, "messages": message, "n": 0}),
        (400, {"model": name, "messages": [{"role": "user", "content": "word " * 20_000}]}),
        (400, b"[" * 100_000),
        (413, b'{"x": "' + b"a" * (5 << 20) + b'"}'),
        (404, {"model": "no-such-model", "messages": message}),
    ]
    for expected, body in bodies:
        connection = await Connection.open(CHAT, body)
        status, shown = await connection.head(), str(body)[:80]
        assert status == expected, f"{status} for {shown}"
        assert json.loads(await connection.text())["error"]["message"], shown
    for expected, method, path in [(404, "GET", "/v1/nothing"), (405, "GET", CHAT), (405, "DELETE", "/v1/models")]:
        status = (await request(path, method=method))[0].status
        assert status == expected, f"{status} for {method} {path}"
    for raw in [b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 5000]:
        try:
            connection = await Connection.open("", raw=raw)
            answer = await connection.reader.read()
        except ConnectionError:
            # The server need not read all of it.
            answer = b""
        assert not answer or answer.startswith(b"HTTP/1.1 4"), answer[:100]
    after = await at_rest()
    assert after["queued"] == before["queued"], (before, after)


async def half_a_body_and_half_a_head_hold_up_nobody():
    before = await at_rest()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\n"
    halves = [b"POST /v1/ch", head.encode(), head.encode() + b"content-length: 5000\r\n\r\n{"]
    open_ = [await Connection.open("", raw=half) for half in halves * 10]
    assert (await streamed(await model(), "a lake"))[0] == 200
    for connection in open_:
        connection.leave()
    after = await at_rest()
    assert after["queued"] - before["queued"] == 1, after


async def readers_and_writers_that_stall_are_given_up_while_others_go_on():
    await at_rest()
    start = time.perf_counter()
    head = await Connection.open("", raw=b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n")
    body = {"model": await model(), **ENDLESS, "max_tokens": 7000, "logprobs": 5}
    stalled = await Connection.open(COMPLETIONS, body, slow=True)
    await until(lambda f: f["running"] == 1, "it does not start")
    ended = asyncio.ensure_future(head.reader.read())
    # The last lanes are for others as long as the stalled reader has one.
    while (now := await figures())["running"] or not ended.done():
        assert time.perf_counter() - start < PATIENCE, f"nobody was given up: {now}, head {ended}"
        await closed_loop(min(2, LANES), 1)
        # It is the others' progress that counts, not how much of it there is.
        await asyncio.sleep(2)
    answer = ended.result()
    assert not answer or answer.startswith(b"HTTP/1.1 408"), answer[:100]
    print(f"given up after {time.perf_counter() - start:.0f} s")
    left = b""
    try:
        while part := await asyncio.wait_for(stalled.reader.read(1 << 16), 10):
            left += part
    except ConnectionError:
        pass
    assert b"[DONE]" not in left, "the whole answer was kept for a reader that takes nothing"
    await at_rest()


def check(body):
    def blocking():
        asyncio.run(asyncio.wait_for(body(), 2 * PATIENCE))

    blocking.__name__ = body.__name__
    return blocking


run(
    [
        check(no_client_sees_an_error_under_load),
        check(a_burst_over_the_queue_is_refused_with_429_and_nothing_else),
        check(leaving_in_the_middle_of_a_stream_frees_the_lane),
        check(leaving_before_a_whole_answer_frees_the_lane),
        check(leaving_during_prefill_frees_the_lane_without_a_token),
        check(leaving_the_queue_frees_the_place),
        check(bad_requests_are_told_why_and_cost_no_turn),
        check(half_a_body_and_half_a_head_hold_up_nobody),
        check(readers_and_writers_that_stall_are_given_up_while_others_go_on),
    ],
    "plain sockets",
)
