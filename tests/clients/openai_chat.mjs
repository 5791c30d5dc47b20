// Runs the `openai` client against a Laneway server: node openai_chat.mjs BASE_URL [API_KEY].
//
// BASE_URL ends in /v1. Every check prints its name; the first failure ends the run with status 1.

import assert from "node:assert/strict";
import OpenAI from "openai";

const [baseURL, apiKey] = process.argv.slice(2);
const QUESTION = [{ role: "user", content: "What is the capital of France?" }];
// Enough to work with, short enough for a slow device.
const FIXED = { temperature: 0, seed: 0, max_tokens: 12 };

const client = new OpenAI({ baseURL, apiKey: apiKey ?? "none", maxRetries: 0, timeout: 300_000 });
const model = (await client.models.list()).data[0].id;

const ask = (settings = {}) =>
  client.chat.completions.create({ model, messages: QUESTION, ...FIXED, ...settings });
const complete = (settings = {}) =>
  client.completions.create({ model, prompt: "The capital of France is", ...FIXED, ...settings });

async function collect(stream) {
  const chunks = [];
  for await (const chunk of await stream) chunks.push(chunk);
  return chunks;
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
  async modelsAreListedAndFound() {
    assert.equal((await client.models.retrieve(model)).id, model);
  },

  async aWholeAnswer() {
    const { object, id, choices, usage } = await ask();
    assert.equal(object, "chat.completion");
    assert.match(id, /^chatcmpl-/);
    assert.equal(choices[0].message.role, "assistant");
    assert.ok(choices[0].message.content.length > 0);
    assert.ok(["stop", "length"].includes(choices[0].finish_reason));
    assert.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
    assert.ok(usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens);
  },

  async aStreamYieldsTheSameText() {
    const whole = await ask();
    const chunks = await collect(ask({ stream: true, stream_options: { include_usage: true } }));
    assert.equal(chunks[0].choices[0].delta.role, "assistant");
    const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
    assert.equal(text, whole.choices[0].message.content);
    const last = chunks.at(-1);
    assert.deepEqual(last.choices, []);
    assert.equal(last.usage.completion_tokens, whole.usage.completion_tokens);
  },

  async theStreamHelperBuildsTheSameMessage() {
    const whole = await ask();
    const built = await client.chat.completions.stream({ model, messages: QUESTION, ...FIXED }).finalChatCompletion();
    assert.equal(built.choices[0].message.content, whole.choices[0].message.content);
    assert.equal(built.choices[0].finish_reason, whole.choices[0].finish_reason);
  },

  async logprobsSpellTheAnswer() {
    const [choice] = (await ask({ logprobs: true, top_logprobs: 3 })).choices;
    const bytes = choice.logprobs.content.flatMap((token) => token.bytes);
    assert.equal(new TextDecoder().decode(Uint8Array.from(bytes)).trim(), choice.message.content.trim());
    for (const token of choice.logprobs.content) assert.equal(token.top_logprobs.length, 3);
  },

  async aStopStringEndsTheAnswer() {
    const text = (await ask()).choices[0].message.content;
    const stop = text.slice(text.length >> 1, (text.length >> 1) + 2);
    const [choice] = (await ask({ stop })).choices;
    assert.equal(choice.message.content, text.slice(0, text.indexOf(stop)));
    assert.equal(choice.finish_reason, "stop");
  },

  async aSeedRepeatsTheAnswer() {
    const seeded = async () => (await ask({ temperature: 1, seed: 1234 })).choices[0].message.content;
    assert.equal(await seeded(), await seeded());
  },

  async severalChoices() {
    const answer = await ask({ n: 2, temperature: 1 });
    assert.deepEqual(answer.choices.map((choice) => choice.index), [0, 1]);
  },

  async aCompletionWholeAndStreamed() {
    const whole = await complete();
    const chunks = await collect(complete({ stream: true }));
    assert.equal(chunks.map((chunk) => chunk.choices[0].text).join(""), whole.choices[0].text);
  },

  async anUnknownModelIsNotFound() {
    const error = await refused(OpenAI.NotFoundError, () => ask({ model: "nope" }));
    assert.equal(error.code, "model_not_found");
    assert.equal(error.param, "model");
  },

  async badRequestsNameTheField() {
    for (const [settings, param] of [
      [{ messages: [] }, "messages"],
      [{ temperature: "hot" }, "temperature"],
      [{ n: 100 }, "n"],
      [{ stop: 7 }, "stop"],
      [{ tools: [{ type: "function", function: { name: "f" } }] }, "tools"],
    ]) {
      const error = await refused(OpenAI.BadRequestError, () => ask(settings));
      assert.equal(error.param, param);
    }
  },

  async aWrongKeyIsRefused() {
    if (!apiKey) return;
    const other = new OpenAI({ baseURL, apiKey: "wrong", maxRetries: 0 });
    await refused(OpenAI.AuthenticationError, () => other.models.list());
  },

  async leavingAStreamLeavesTheServerWell() {
    const stream = await ask({ stream: true, max_tokens: 1000 });
    for await (const _ of stream) break;
    assert.ok((await ask()).choices[0].message.content);
  },
};

for (const [name, check] of Object.entries(checks)) {
  await check();
  console.log("ok", name);
}
console.log(`${Object.keys(checks).length} checks passed`);
