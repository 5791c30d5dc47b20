// Asks a Laneway server for the capital of France, streamed: node paris.mjs ADDRESS [API_KEY].

import assert from "node:assert/strict";

const [address, apiKey] = process.argv.slice(2);
const headers = { "content-type": "application/json", authorization: `Bearer ${apiKey}` };
const models = await (await fetch(`${address}/v1/models`, { headers })).json();
const response = await fetch(`${address}/v1/chat/completions`, {
  method: "POST",
  headers,
  body: JSON.stringify({
    model: models.data[0].id,
    messages: [{ role: "user", content: "What is the capital of France?" }],
    temperature: 0,
    max_tokens: 16,
    stream: true,
  }),
});
assert.equal(response.status, 200);
assert.match(response.headers.get("content-type"), /^text\/event-stream/);
const events = (await response.text()).split("\n").filter((line) => line.startsWith("data: "));
assert.equal(events.at(-1), "data: [DONE]");
const chunks = events.slice(0, -1).map((line) => JSON.parse(line.slice("data: ".length)));
const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
assert.match(text, /Paris/);
assert.ok(chunks.length > 3, "the answer came in one piece");
console.log("ok a_streamed_answer_knows_paris:", text);
