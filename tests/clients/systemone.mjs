// Runs `@typesafe-ai/sdk` against a Laneway server: node systemone.mjs ADDRESS [API_KEY].
//
// ADDRESS is the server's root, without /v1. Every check prints its name; the first failure ends the run with status 1.

import assert from "node:assert/strict";
import {
  AuthenticationError,
  BadRequestError,
  RateLimitError,
  InternalServerError,
  TypeSafeClient,
  UnprocessableEntityError,
} from "@typesafe-ai/sdk";

const [baseURL, apiKey] = process.argv.slice(2);
const STATE = { ticket: "I was charged twice and nobody answers my mails.", tier: "gold", orders: [1, 2.5, null, true] };
const QUESTIONS = {
  refund: { type: "noul", instructions: "Does the customer want money back?" },
  "Ärger 🎁": { type: "noul", criteria: { true: "The customer is angry.", false: { tone: "calm" } } },
  team: {
    type: "choice",
    instructions: { ask: "Which team?" },
    criteria: { shipping: null, billing: "Charges, refunds", access: ["login", "password"] },
  },
  urgency: { type: "score", instructions: "How urgent is this?", criteria: ["Can wait", { name: "Soon" }, "Now"] },
};

const settings = { baseURL, apiKey: apiKey || "local", retry: { maxRetries: 0 }, timeout: 300_000 };
const client = new TypeSafeClient(settings);

const ask = (questions = QUESTIONS, more = {}) => client.systemOne({ state: STATE, questions, ...more });
const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
const close = (measured, expected, tolerance = 1e-4) =>
  assert.ok(Math.abs(measured - expected) <= tolerance, `${measured} is not ${expected}`);
const numbers = ({ answers }) =>
  Object.values(answers).map((answer) => answer.probabilities ?? { noul: answer.noul });

function wellFormed({ answers }, questions) {
  assert.deepEqual(Object.keys(answers), Object.keys(questions));
  for (const [id, { type, criteria }] of Object.entries(questions)) {
    const answer = answers[id];
    assert.equal(answer.type, type);
    if (type === "noul") {
      assert.ok(answer.noul >= 0 && answer.noul <= 1);
      continue;
    }
    const probabilities = Object.values(answer.probabilities);
    assert.deepEqual(Object.keys(answer.probabilities), Object.keys(criteria));
    close(sum(probabilities), 1);
    assert.ok(answer.confidence >= 0 && answer.confidence <= 1);
    if (type === "choice") {
      assert.equal(answer.probabilities[answer.choice], Math.max(...probabilities));
      const uniform = 1 / probabilities.length;
      close(answer.confidence, (Math.max(...probabilities) - uniform) / (1 - uniform));
    } else {
      assert.deepEqual(Object.values(answer.legend), criteria);
      close(answer.score, sum(probabilities.map((p, level) => p * level)));
    }
  }
}

async function refused(kind, action) {
  try {
    await action();
  } catch (error) {
    assert.ok(error instanceof kind, `${kind.name} expected, not ${error}`);
    return error;
  }
  assert.fail(`${kind.name} expected`);
}

const checks = {
  async modelsAreListed() {
    const [model] = await client.models.list();
    assert.ok(model.name && model.description);
    assert.match(model.release_date, /^\d{4}-\d{2}-\d{2}$/);
  },

  async everyTypeIsAnswered() {
    const { data, requestId, response } = await ask().withResponse();
    wellFormed(data, QUESTIONS);
    assert.ok(data.usage.input_tokens > 0 && data.usage.output_tokens === 0);
    assert.ok(requestId);
    assert.match(response.headers.get("server-timing"), /total;dur=/);
  },

  async aStateMayBeTextOrAList() {
    const questions = { refund: QUESTIONS.refund };
    for (const state of ["text", [{ role: "user", content: "Überraschung" }], "long ".repeat(400)]) {
      wellFormed(await ask(questions, { state }), questions);
    }
  },

  async theSameRequestHasTheSameAnswerAfterAnother() {
    const first = await ask();
    await ask({ colour: { type: "choice", instructions: "Colour?", criteria: { red: null, blue: null } } });
    assert.deepEqual(numbers(await ask()), numbers(first));
  },

  async anIdDoesNotChangeAnAnswer() {
    const renamed = Object.fromEntries(Object.values(QUESTIONS).map((question, index) => [`say no ${index}`, question]));
    assert.deepEqual(numbers(await ask(renamed)), numbers(await ask()));
  },

  async readsAtOnceStayApart() {
    const read = async (index) => {
      const names = Array.from({ length: 2 + (index % 5) }, (_, place) => `option ${index}.${place}`);
      const criteria = Object.fromEntries(names.map((name) => [name, null]));
      const questions = { [`question ${index}`]: { type: "choice", instructions: "Which?", criteria } };
      try {
        wellFormed(await ask(questions), questions);
        return true;
      } catch (error) {
        assert.ok(error instanceof RateLimitError || (error instanceof InternalServerError && error.status === 529), error);
        return false;
      }
    };
    const answered = await Promise.all(Array.from({ length: 16 }, (_, index) => read(index)));
    assert.ok(answered.includes(true), "no read was answered");
  },

  async errorsAreOfTheRightClass() {
    const unknown = await refused(BadRequestError, () => ask(QUESTIONS, { model: "no-such-model" }));
    assert.equal(unknown.body.detail.error_type, "api_usage_error");
    assert.ok(unknown.requestId);
    const shape = await refused(UnprocessableEntityError, () => ask({ q: { type: "noul", instructions: 7 } }));
    assert.deepEqual(shape.body.detail[0].loc.slice(0, 3), ["body", "questions", "q"]);
  },

  async aWrongKeyIsRefused() {
    const other = new TypeSafeClient({ ...settings, apiKey: "wrong" });
    if (apiKey) await refused(AuthenticationError, () => other.systemOne({ state: STATE, questions: QUESTIONS }));
    else wellFormed(await other.systemOne({ state: STATE, questions: QUESTIONS }), QUESTIONS);
  },
};

for (const [name, check] of Object.entries(checks)) {
  await check();
  console.log("ok", name);
}
console.log(`${Object.keys(checks).length} checks passed with @typesafe-ai/sdk`);
