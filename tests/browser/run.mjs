// The engine as wasm in headless Chromium, on WebGPU over SwiftShader, against the fixtures' greedy ids.
// Needs web/pkg (`cargo xtask build-web`) and playwright-core under target/browser.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";
import { serve } from "./server.mjs";

const root = fileURLToPath(new URL("../..", import.meta.url));
const fixtures = `${root}tests/data/fixtures`;
const { chromium } = createRequire(`${root}target/browser/`)("playwright-core");

const FAMILIES = ["llama_tiny", "gemma3_tiny", "gemma4_dense_tiny", "gemma4_moe_tiny", "gemma4_ple_shared_tiny"];
const LIMIT_MS = 300_000;
const measures = process.argv.includes("--measure");

function reference(family) {
  const file = readFileSync(`${fixtures}/${family}/reference.safetensors`);
  const start = 8 + Number(file.readBigUInt64LE(0));
  const tensors = JSON.parse(file.toString("utf8", 8, start));
  return (name) => {
    const [from, to] = tensors[name].data_offsets;
    assert.equal(tensors[name].dtype, "I32");
    return Array.from({ length: (to - from) / 4 }, (_, i) => file.readInt32LE(start + from + 4 * i));
  };
}

const folders = { "/fixtures/": fixtures, "/": `${root}web` };
// A build with the feature `measure` is kept apart from the product's.
const server = await serve(measures ? { "/pkg/": `${root}target/browser/pkg-measure`, ...folders } : folders);
const launch = (...args) =>
  chromium.launch({
    executablePath: process.env.LANEWAY_CHROMIUM ?? "/usr/bin/chromium",
    headless: false,
    args: ["--headless=new", "--no-sandbox", ...args],
  });
const browser = await launch("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader");
let complaints = [];

// `sabotage` is JavaScript that the worker runs before anything else.
async function open(path, { inside = browser, sabotage } = {}) {
  const page = await inside.newPage();
  page.setDefaultTimeout(LIMIT_MS);
  if (sabotage) {
    await page.route("**/worker.js", async (route) => {
      const response = await route.fetch();
      await route.fulfill({ response, body: `${sabotage};\n${await response.text()}` });
    });
  }
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) complaints.push(message.text());
  });
  page.on("pageerror", (error) => complaints.push(error.message));
  await page.goto(`${server.origin}${path}`);
  return page;
}

async function selftest(query, options) {
  const page = await open(`/selftest.html?${new URLSearchParams(query)}`, options);
  const output = page.locator("#result:not(:empty)");
  await output.waitFor({ state: "attached" });
  const result = JSON.parse(await output.textContent());
  await page.close();
  return result;
}

const model = (family) => `/fixtures/${family}_gguf/model.gguf`;
const llama = reference("llama_tiny");
const llamaPrompt = llama("input_ids").join();

const tests = [];
const test = (name, body) => tests.push({ name, body });

for (const family of FAMILIES) {
  test(`${family} gives its greedy ids, twice`, async () => {
    const ids = reference(family);
    const expected = ids("greedy_ids");
    const query = { model: model(family), prompt: ids("input_ids"), count: expected.length, repeat: 2 };
    if (measures) Object.assign(query, { steps: 64, launches: 500 });
    const result = await selftest(query);
    assert.equal(result.error, undefined);
    // The second answer starts from pages that the first one left.
    assert.deepEqual(result.answers, [expected, expected]);
    assert.deepEqual(complaints, []);
    assert.equal(result.model.api, "webgpu");
    return measures ? result : { load_ms: result.load_ms, generate_ms: result.generate_ms };
  });
}

test("a truncated file is refused with the reader's message", async () => {
  const { error } = await selftest({ model: `${model("llama_tiny")}?bytes=100000`, prompt: "1" });
  assert.match(error, /100000|truncated|end/);
  return { error };
});

test("an empty file is refused", async () => {
  const { error } = await selftest({ model: `${model("llama_tiny")}?bytes=0`, prompt: "1" });
  assert.ok(error);
  return { error };
});

test("a token outside the vocabulary is refused", async () => {
  const { error } = await selftest({ model: model("llama_tiny"), prompt: "1,4000000000" });
  assert.match(error, /token 4000000000 is outside the vocabulary of \d+/);
});

test("an empty prompt is refused", async () => {
  const { error } = await selftest({ model: model("llama_tiny"), prompt: "" });
  assert.equal(error, "the prompt has no tokens");
});

test("a prompt longer than the context is refused", async () => {
  const { error } = await selftest({ model: model("llama_tiny"), prompt: llamaPrompt, contextLength: 4 });
  assert.match(error, /^the prompt has \d+ tokens, the context holds 4$/);
});

test("an answer ends where the context ends", async () => {
  const length = llama("input_ids").length + 3;
  const query = { model: model("llama_tiny"), prompt: llamaPrompt, contextLength: length, count: 100 };
  const result = await selftest(query);
  const [ids] = result.answers ?? assert.fail(result.error);
  assert.deepEqual(ids, llama("greedy_ids").slice(0, ids.length));
  assert.ok(ids.length >= 3 && ids.length <= 4, `${ids.length} ids`);
});

test("a worker refuses what it cannot do and then goes on", async () => {
  const page = await open("/selftest.html?model=/none");
  const found = await page.evaluate(
    async ({ model, prompt, count }) => {
      const { openWorker } = await import("/client.js");
      const worker = openWorker();
      const file = await (await fetch(model)).arrayBuffer();
      const reason = (promise) => promise.then((value) => ({ value }), (error) => error.message);
      const early = await reason(worker.generate(prompt, count));
      await worker.load(file);
      const both = await Promise.all([
        worker.generate(prompt, count).then((ids) => [...ids]),
        reason(worker.generate(prompt, count)),
      ]);
      const steps = await reason(worker.stepTimings(1e6));
      const after = [...(await worker.generate(prompt, count))];
      worker.close();
      return { early, both, steps, after };
    },
    { model: model("llama_tiny"), prompt: llama("input_ids"), count: 4 },
  );
  await page.close();
  const expected = llama("greedy_ids").slice(0, 4);
  assert.equal(found.early, "no model is loaded");
  assert.deepEqual(found.both, [expected, "the model is busy with another call"]);
  assert.match(found.steps, /^1000000 steps do not fit a context of \d+ positions$/);
  assert.deepEqual(found.after, expected);
});

test("a lost device rejects every call until the model is loaded again", async () => {
  const page = await open("/selftest.html?model=/none");
  const found = await page.evaluate(
    async ({ model, prompt, count }) => {
      const { openWorker } = await import("/client.js");
      const worker = openWorker();
      const load = async () => worker.load(await (await fetch(model)).arrayBuffer());
      const attempt = () => worker.generate(prompt, count).then((ids) => [...ids], (error) => error.message);
      await load();
      const before = await attempt();
      await worker.loseDevice();
      const lost = [await attempt(), await attempt()];
      await load();
      const after = await attempt();
      worker.close();
      return { before, lost, after };
    },
    { model: model("llama_tiny"), prompt: llama("input_ids"), count: 4 },
  );
  await page.close();
  const expected = llama("greedy_ids").slice(0, 4);
  assert.deepEqual(found.before, expected);
  assert.match(found.lost[0], /device/);
  assert.equal(found.lost[1], "the device was lost, load the model again");
  assert.deepEqual(found.after, expected);
});

const breaks = (method) => `GPUQueue.prototype.${method} = () => { throw new Error("broken by the test") }`;

test("a panic rejects the call with its message, and all calls after it", async () => {
  const page = await open("/selftest.html?model=/none", { sabotage: breaks("writeBuffer") });
  const errors = await page.evaluate(async (model) => {
    const { openWorker } = await import("/client.js");
    const worker = openWorker();
    const load = async () => worker.load(await (await fetch(model)).arrayBuffer()).catch((error) => error.message);
    return [await load(), await load()];
  }, model("llama_tiny"));
  await page.close();
  assert.match(errors[0], /^internal error, start a new worker: panicked at .*broken by the test/s);
  assert.match(errors[1], /^internal error, start a new worker: /);
});

test("an exception out of WebGPU rejects the call", async () => {
  const sabotage = breaks("submit");
  const { error } = await selftest({ model: model("llama_tiny"), prompt: "1" }, { sabotage });
  assert.match(error, /^internal error, start a new worker: .*broken by the test/s);
});

test("a browser without WebGPU is told so", async () => {
  const inside = await launch("--disable-gpu", "--disable-features=WebGPU,WebGPUService");
  const { error } = await selftest({ model: model("llama_tiny"), prompt: "1" }, { inside });
  await inside.close();
  assert.match(error, /no .*adapter/);
});

test("the page runs a file that is picked", async () => {
  const page = await open("/");
  await page.setInputFiles("#file", `${fixtures}/llama_tiny_gguf/model.gguf`);
  const output = page.locator("#result").filter({ hasText: /timings|Failed/ });
  await output.waitFor();
  const result = JSON.parse(await output.textContent());
  await page.close();
  assert.equal(result.ids.length, 8);
  assert.deepEqual(complaints, []);
});

let failed = 0;
for (const [index, { name, body }] of tests.entries()) {
  complaints = [];
  const began = performance.now();
  try {
    const figures = await body();
    console.log(`ok ${index + 1} - ${name} # ${Math.round(performance.now() - began)} ms`);
    if (figures) console.log(`  # ${JSON.stringify(figures)}`);
  } catch (error) {
    failed += 1;
    console.log(`not ok ${index + 1} - ${name}`);
    for (const line of [error.message, ...complaints].join("\n").split("\n")) console.log(`  # ${line}`);
  }
}
console.log(`1..${tests.length}`);
console.log(`${tests.length - failed} passed, ${failed} failed`);
await browser.close();
server.close();
process.exitCode = failed === 0 ? 0 : 1;
