"""Runs `client.decisions` of `openai` against a Laneway server: decisions.py BASE_URL [API_KEY].

BASE_URL ends in /v1.
"""

import json
import sys

import openai
from checks import STATE, choice_confidence, close, is_distribution, refused, run, score_confidence

BASE_URL = sys.argv[1]
API_KEY = sys.argv[2] if len(sys.argv) > 2 else ""
PREDICATE = {"type": "predicate", "name": "refund", "instructions": "The customer wants money back."}
CHOICE = {
    "type": "choice",
    "name": "team",
    "instructions": "Which team should answer?",
    "choices": [{"value": "billing", "description": "Charges"}, {"value": "shipping"}, {"value": "true"}],
}
TYPED = {"type": "choice", "instructions": "Angry?", "choices": [{"value": True}, {"value": False}, {"value": "true"}]}
SCORE = {
    "type": "score",
    "instructions": "How urgent is this?",
    "levels": [{"label": "low", "description": "Can wait"}, {"label": "mid"}, {"label": "high"}],
}
QUESTIONS = [PREDICATE, CHOICE, TYPED, SCORE]

client = openai.OpenAI(base_url=BASE_URL, api_key=API_KEY or "none", max_retries=0, timeout=300)
model = client.models.list().data[0].id


def ask(questions=QUESTIONS, **settings):
    return client.decisions.create(**{"model": model, "input": json.dumps(STATE), "questions": questions, **settings})


def numbers(decision):
    return [
        [answer.probability] if answer.type == "predicate" else [p.probability for p in answer.probabilities]
        for answer in decision.answers
    ]


def answers_come_in_the_order_of_the_questions():
    decision = ask()
    assert decision.model == model
    assert [answer.type for answer in decision.answers] == ["predicate", "choice", "choice", "score"]
    assert [answer.name for answer in decision.answers] == ["refund", "team", None, None]
    assert 0 <= decision.answers[0].probability <= 1


def choices_keep_their_order_and_type():
    for question, answer in zip([CHOICE, TYPED], ask([CHOICE, TYPED]).answers, strict=True):
        values = [choice["value"] for choice in question["choices"]]
        found = [p.value for p in answer.probabilities]
        assert found == values and [type(v) for v in found] == [type(v) for v in values], found
        probabilities = [p.probability for p in answer.probabilities]
        is_distribution(probabilities)
        top = probabilities.index(max(probabilities))
        assert answer.choice == values[top] and type(answer.choice) is type(values[top])
        close(answer.confidence, choice_confidence(probabilities))


def a_score_is_the_expected_level():
    answer = ask([SCORE]).answers[0]
    assert [(p.value, p.label) for p in answer.probabilities] == [(0, "low"), (1, "mid"), (2, "high")]
    probabilities = [p.probability for p in answer.probabilities]
    is_distribution(probabilities)
    close(answer.score, sum(level * p for level, p in enumerate(probabilities)))
    close(answer.confidence, score_confidence(probabilities))


def usage_adds_up():
    usage = ask().usage
    assert usage.input_tokens > 0
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert 0 <= usage.input_tokens_details.cached_tokens <= usage.input_tokens
    assert usage.input_tokens_details.cache_write_tokens >= 0
    assert usage.output_tokens_details.reasoning_tokens == 0


def messages_are_an_input():
    messages = [
        {"role": "system", "content": "You sort tickets."},
        {"role": "user", "content": [{"type": "input_text", "text": "I was charged twice."}]},
        {"role": "assistant", "content": "I am sorry."},
        {"type": "function_call", "call_id": "c1", "name": "orders", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "two charges"},
    ]
    assert len(ask(input=messages).answers) == len(QUESTIONS)


def a_name_does_not_change_an_answer():
    renamed = [{**question, "name": f"say yes {index}"} for index, question in enumerate(QUESTIONS)]
    assert numbers(ask(renamed)) == numbers(ask())


def both_protocols_read_the_same():
    questions = {"refund": {"type": "noul", "instructions": PREDICATE["instructions"]}}
    body = {"model": model, "state": json.dumps(STATE), "questions": questions}
    answer = client.post("/systemone", body=body, cast_to=object)
    close(answer["answers"]["refund"]["noul"], ask([PREDICATE]).answers[0].probability, 1e-6)


def errors_are_of_the_right_class():
    refused(openai.NotFoundError, lambda: ask(model="no-such-model"))
    one_level = {"type": "score", "instructions": "?", "levels": [{"label": "a"}]}
    twice = {"type": "choice", "instructions": "?", "choices": [{"value": "a"}, {"value": "a"}]}
    for questions in [[], [{"type": "noul", "instructions": "?"}], [{"type": "predicate"}], [one_level], [twice]]:
        error = refused(openai.BadRequestError, lambda: ask(questions))
        assert error.type == "invalid_request_error" and error.message, error
        assert (error.param or "").startswith("questions"), (questions, error.param)
    refused(openai.BadRequestError, lambda: ask(input=[]))
    error = refused(openai.BadRequestError, lambda: ask(input="a b " * 400_000))
    assert "token" in error.message, error


def a_wrong_key_is_refused():
    if API_KEY:
        other = openai.OpenAI(base_url=BASE_URL, api_key="wrong", max_retries=0)
        refused(
            openai.AuthenticationError,
            lambda: other.decisions.create(model=model, input="text", questions=[PREDICATE]),
        )


CHECKS = [
    answers_come_in_the_order_of_the_questions,
    choices_keep_their_order_and_type,
    a_score_is_the_expected_level,
    usage_adds_up,
    messages_are_an_input,
    a_name_does_not_change_an_answer,
    both_protocols_read_the_same,
    errors_are_of_the_right_class,
    a_wrong_key_is_refused,
]

run(CHECKS, f"openai {openai.__version__}")
