"""Runs the `openai` client against a Laneway server: openai_chat.py BASE_URL [API_KEY].

BASE_URL ends in /v1. Every check prints its name; the first failure ends the run with status 1.
"""

import sys

import openai

BASE_URL = sys.argv[1]
API_KEY = sys.argv[2] if len(sys.argv) > 2 else None
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
# Enough to work with, short enough for a slow device.
FIXED = {"temperature": 0, "seed": 0, "max_tokens": 12}

client = openai.OpenAI(base_url=BASE_URL, api_key=API_KEY or "none", max_retries=0, timeout=300)
model = client.models.list().data[0].id


def ask(**settings):
    return client.chat.completions.create(model=model, **{"messages": QUESTION, **FIXED, **settings})


def complete(**settings):
    return client.completions.create(model=model, **{"prompt": "The capital of France is", **FIXED, **settings})


def refused(kind, action):
    try:
        action()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} expected")


def models_are_listed_and_found():
    assert client.models.retrieve(model).id == model


def a_whole_answer():
    answer = ask()
    choice, usage = answer.choices[0], answer.usage
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 <= usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens


def a_stream_yields_the_same_text():
    whole = ask()
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content, (text, whole.choices[0].message.content)
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    assert reasons == [whole.choices[0].finish_reason]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(c.usage is None for c in chunks[:-1])


def logprobs_spell_the_answer():
    choice = ask(logprobs=True, top_logprobs=3).choices[0]
    tokens = choice.logprobs.content
    spelled = bytes(byte for token in tokens for byte in token.bytes).decode()
    assert spelled.strip() == choice.message.content.strip(), (spelled, choice.message.content)
    for token in tokens:
        assert token.logprob <= 1e-4 and len(token.top_logprobs) == 3
        ranked = [rival.logprob for rival in token.top_logprobs]
        assert ranked == sorted(ranked, reverse=True)


def a_stop_string_ends_the_answer():
    text = ask().choices[0].message.content
    middle = len(text) // 2
    stop = text[middle : middle + 2]
    choice = ask(stop=[stop]).choices[0]
    assert choice.message.content == text[: text.index(stop)] and choice.finish_reason == "stop"


def a_seed_repeats_the_answer():
    texts = {ask(temperature=1, seed=1234).choices[0].message.content for _ in range(3)}
    assert len(texts) == 1, texts


def several_choices():
    answer = ask(n=2, temperature=1)
    assert [choice.index for choice in answer.choices] == [0, 1]
    indexes = {chunk.choices[0].index for chunk in ask(n=2, temperature=1, stream=True)}
    assert indexes == {0, 1}


def text_parts_are_read():
    parts = [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}]
    assert ask(messages=parts).choices[0].message.content == ask().choices[0].message.content


def a_completion_whole_and_streamed():
    whole = complete(logprobs=2)
    choice = whole.choices[0]
    assert whole.object == "text_completion" and choice.text
    lists = choice.logprobs
    assert len(lists.tokens) == len(lists.token_logprobs) == len(lists.text_offset) == len(lists.top_logprobs) > 0
    text = "".join(chunk.choices[0].text for chunk in complete(stream=True))
    assert text == choice.text
    assert len(complete(prompt=["one", "two"]).choices) == 2


def an_unknown_model_is_not_found():
    error = refused(
        openai.NotFoundError, lambda: client.chat.completions.create(model="nope", messages=QUESTION)
    )
    assert error.code == "model_not_found" and error.param == "model"


def bad_requests_name_the_field():
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    for settings, param in [
        ({"messages": []}, "messages"),
        ({"messages": image}, "messages[0].content[0].type"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 100}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "ten"}, "max_tokens"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ]:
        error = refused(openai.BadRequestError, lambda: ask(**settings))
        assert error.param == param and error.type == "invalid_request_error", (settings, error)
    error = refused(openai.BadRequestError, lambda: ask(messages=[{"role": "user", "content": "a b " * 400_000}]))
    assert error.code == "context_length_exceeded"


def a_large_body_is_refused():
    error = refused(openai.APIStatusError, lambda: ask(messages=[{"role": "user", "content": "x" * (8 << 20)}]))
    assert error.status_code == 413, error


def a_wrong_key_is_refused():
    if API_KEY:
        other = openai.OpenAI(base_url=BASE_URL, api_key="wrong", max_retries=0)
        refused(openai.AuthenticationError, other.models.list)


def leaving_a_stream_leaves_the_server_well():
    stream = ask(stream=True, max_tokens=1000)
    next(iter(stream))
    stream.close()
    assert ask().choices[0].message.content


CHECKS = [
    models_are_listed_and_found,
    a_whole_answer,
    a_stream_yields_the_same_text,
    logprobs_spell_the_answer,
    a_stop_string_ends_the_answer,
    a_seed_repeats_the_answer,
    several_choices,
    text_parts_are_read,
    a_completion_whole_and_streamed,
    an_unknown_model_is_not_found,
    bad_requests_name_the_field,
    a_large_body_is_refused,
    a_wrong_key_is_refused,
    leaving_a_stream_leaves_the_server_well,
]

for check in CHECKS:
    check()
    print("ok", check.__name__)
print(f"{len(CHECKS)} checks passed with openai {openai.__version__}")
