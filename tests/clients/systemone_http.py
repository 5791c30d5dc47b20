"""Checks of POST /v1/systemone that no client makes: systemone_http.py ADDRESS [API_KEY] [ORIGIN].

ORIGIN is the one that the server was told to allow with --cors. Empty ones mean none.
"""

import gzip
import http.client
import json
import sys
import urllib.parse
import zlib

from checks import STATE, run

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ADDRESS = urllib.parse.urlsplit(sys.argv[1])
API_KEY = sys.argv[2] if len(sys.argv) > 2 else ""
ORIGIN = sys.argv[3] if len(sys.argv) > 3 else ""
SDK_HEADERS = ["authorization", "content-type", "x-typesafe-sdk", "x-typesafe-runtime", "x-typesafe-retry-count"]
REFUND = {"type": "noul", "instructions": "Does the customer want money back?"}
BODY = {"model": "jev-latest", "state": STATE, "questions": {"refund": REFUND}}


class Answer:
    def __init__(self, response):
        self.status, self.headers, self.text = response.status, response.headers, response.read()

    def json(self):
        return json.loads(self.text)

    def __repr__(self):
        return f"{self.status} {self.text[:300]}"


def send(body=BODY, path="/v1/systemone", method="POST", key=API_KEY, **headers):
    connection = http.client.HTTPConnection(ADDRESS.hostname, ADDRESS.port, timeout=300)
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    if key:
        headers["authorization"] = f"Bearer {key}"
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    if body is not None:
        headers.setdefault("content-type", "application/json")
    connection.request(method, path, body, headers)
    answer = Answer(connection.getresponse())
    connection.close()
    return answer


def noul(answer):
    assert answer.status == 200, answer
    return answer.json()["answers"]["refund"]["noul"]


def refuses(answer, *statuses):
    assert answer.status in statuses, answer
    assert answer.headers.get_content_type() == "application/json", answer
    return answer.json()["detail"]


def names(answer, header):
    return {name.strip().lower() for name in (answer.headers[header] or "").split(",")}


def an_answer_names_its_request_and_its_times():
    first, second = send(), send()
    ids = {answer.headers["x-typesafe-request-id"] for answer in [first, second]}
    assert len(ids) == 2 and None not in ids, ids
    durations = dict(part.strip().split(";dur=") for part in first.headers["server-timing"].split(","))
    assert "total" in durations and all(float(duration) >= 0 for duration in durations.values()), durations
    assert send({}).headers["x-typesafe-request-id"], "a refusal has no request id"


def the_short_path_answers_too():
    assert noul(send(path="/systemone")) == noul(send())


def packed_bodies_are_read():
    raw = json.dumps(BODY).encode()
    deflate = zlib.compressobj(wbits=-15)
    for coding, packed in [
        ("gzip", gzip.compress(raw)),
        ("deflate", zlib.compress(raw)),
        ("deflate", deflate.compress(raw) + deflate.flush()),
        ("zstd", zstd.compress(raw)),
        ("zstd", zstd.compress(raw[:40]) + zstd.compress(raw[40:])),
        ("identity", raw),
    ]:
        assert noul(send(packed, content_encoding=coding)) == noul(send()), coding


def packed_nonsense_is_refused():
    for coding in ["gzip", "deflate", "zstd"]:
        refuses(send(b"not packed", content_encoding=coding), 400, 422)
        refuses(send(gzip.compress(json.dumps(BODY).encode())[:-12], content_encoding=coding), 400, 422)


def unknown_kinds_of_body_are_refused():
    refuses(send(content_encoding="br"), 415)
    refuses(send(content_type="text/plain"), 415)
    refuses(send(content_type="application/x-www-form-urlencoded"), 415)


def bodies_over_the_limit_are_refused_also_when_packed():
    large = json.dumps({**BODY, "state": "x" * (256 << 20)}).encode()
    assert refuses(send(zstd.compress(large), content_encoding="zstd"), 413)["error_type"] == "api_usage_error"
    refuses(send(gzip.compress(large, 1), content_encoding="gzip"), 413)


def form(*parts):
    boundary = "d0c5e2"
    lines = b""
    for name, kind, data in parts:
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\nContent-Type: {kind}\r\n\r\n'
        lines += head.encode() + data + b"\r\n"
    return send(lines + f"--{boundary}--\r\n".encode(), content_type=f"multipart/form-data; boundary={boundary}")


def a_form_is_read_by_its_request_part():
    assert noul(form(("request", "application/json", json.dumps(BODY).encode()))) == noul(send())
    refuses(form(("other", "application/json", b"{}")), 400, 422)
    refuses(send(b"no form", content_type="multipart/form-data; boundary=x"), 400, 422)
    refuses(send(b"no form", content_type="multipart/form-data"), 400, 415, 422)


def images_are_refused_and_not_ignored():
    assets = {"<image:1>": {"type": "image", "part": "asset-0"}}
    body = {**BODY, "state": "See <image:1>", "assets": assets}
    refuses(form(("request", "application/json", json.dumps(body).encode()), ("asset-0", "image/png", b"\x89PNG")), 400)
    refuses(send({**BODY, "images": ["data:image/png;base64,iVBORw0KGgo="]}), 400)


def unknown_fields_are_ignored():
    more = {"metadata": {"trace": [1, None]}, "temperature": "warm", "x_unknown": True}
    question = {**REFUND, "unknown": 1}
    assert noul(send({**BODY, **more, "questions": {"refund": question}})) == noul(send())


def every_wrong_place_is_told():
    body = {"state": 1, "questions": {"a": {"type": "choice", "criteria": ["x"]}, "b": {}}}
    detail = refuses(send(body), 422)
    places = [error["loc"][:3] for error in detail]
    assert places == [["body", "state"], ["body", "questions", "a"], ["body", "questions", "b"]], places
    assert all(error["msg"] and error["type"] for error in detail)
    for broken in [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"state": "s"}', b"[" * 100_000]:
        assert isinstance(refuses(send(broken), 422), list), broken


def what_the_model_cannot_do_is_refused():
    for question in [{"type": "box", "instructions": "Where?"}, {"type": "span", "instructions": "Where?"}]:
        refuses(send({**BODY, "questions": {"refund": question}}), 400, 422)
    for model in ["no-such-model", "gpt-4"]:
        assert refuses(send({**BODY, "model": model}), 400)["error_type"] == "api_usage_error"
    for alias in ["jev-latest", "jev-preview", "openjev-latest", own_name()]:
        answer = send({**BODY, "model": alias})
        assert noul(answer) == noul(send()) and answer.json()["model"] == own_name()


def own_name():
    return send(None, "/v1/models", "GET").json()["models"][0]["name"]


def the_models_are_listed_in_both_shapes():
    answer = send(None, "/v1/models", "GET").json()
    assert answer["object"] == "list"
    assert [model["id"] for model in answer["data"]] == [model["name"] for model in answer["models"]]
    assert all(model["description"] and model["release_date"] for model in answer["models"])


def order_is_kept_and_the_last_of_equal_keys_counts():
    options = ["zeta", "alpha", "10", "9", "mid"]
    question = {"type": "choice", "instructions": "Which?", "criteria": dict.fromkeys(options)}
    ids = ["z", "a", "10", "9"]
    answer = send({**BODY, "questions": dict.fromkeys(ids, question)}).json()["answers"]
    assert list(answer) == ids
    assert all(list(each["probabilities"]) == options for each in answer.values())
    twice = json.dumps({**BODY, "questions": {"q": question}}).replace('"alpha": null', '"alpha": null, "zeta": "last"')
    assert list(send(twice.encode()).json()["answers"]["q"]["probabilities"]) == options


def a_key_is_asked_for_only_if_there_is_one():
    if not API_KEY:
        assert noul(send(key="anything")) == noul(send())
        return
    for key, statuses in [("", (401, 403)), ("wrong", (401,))]:
        for path in ["/v1/systemone", "/systemone"]:
            assert refuses(send(key=key, path=path), *statuses)["error_type"] == "authentication_error"


def other_paths_and_methods_are_refused():
    assert send(None, method="GET").status == 405
    assert send(path="/v1/systemone/x").status == 404


def preflight(origin):
    return send(
        None,
        method="OPTIONS",
        key="",
        origin=origin,
        access_control_request_method="POST",
        access_control_request_headers=",".join(SDK_HEADERS),
        access_control_request_private_network="true",
    )


def pages_of_the_allowed_origin_may_ask():
    answer = preflight(ORIGIN)
    assert answer.status in (200, 204), answer
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert names(answer, "access-control-allow-headers") >= set(SDK_HEADERS), answer.headers
    assert answer.headers["access-control-allow-private-network"] == "true"
    for answer in [send(origin=ORIGIN), send({}, origin=ORIGIN)]:
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        exposed = names(answer, "access-control-expose-headers")
        assert exposed >= {"x-typesafe-request-id", "retry-after", "retry-after-ms", "server-timing"}, exposed


def pages_of_other_origins_may_not():
    for answer in [preflight("https://elsewhere.example"), send(origin="https://elsewhere.example")]:
        assert answer.headers["access-control-allow-origin"] is None, dict(answer.headers)


CHECKS = [
    an_answer_names_its_request_and_its_times,
    the_short_path_answers_too,
    packed_bodies_are_read,
    packed_nonsense_is_refused,
    unknown_kinds_of_body_are_refused,
    bodies_over_the_limit_are_refused_also_when_packed,
    a_form_is_read_by_its_request_part,
    images_are_refused_and_not_ignored,
    unknown_fields_are_ignored,
    every_wrong_place_is_told,
    what_the_model_cannot_do_is_refused,
    the_models_are_listed_in_both_shapes,
    order_is_kept_and_the_last_of_equal_keys_counts,
    a_key_is_asked_for_only_if_there_is_one,
    other_paths_and_methods_are_refused,
    pages_of_other_origins_may_not,
]
if ORIGIN:
    CHECKS.append(pages_of_the_allowed_origin_may_ask)

run(CHECKS, "plain HTTP")
