// Measures llama.cpp on one model file and prints one JSON object:
//   node llama.mjs FILE [--gpu vulkan] [--threads N] [--prompt N] [--decode N] [--runs N]
//
// Prefill is timed to the first sampled token, decode from there on; CPU seconds count every thread of the process.
// The figures of a run are medians over `runs` after a warm-up that compiles what there is to compile. LANEWAY_PEERS names the folder with node_modules.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    gpu: { type: "string", default: "none" },
    threads: { type: "string", default: "1" },
    prompt: { type: "string", default: "128" },
    decode: { type: "string", default: "32" },
    runs: { type: "string", default: "1" },
  },
});
const count = (name) => Number.parseInt(values[name], 10);
const [threads, promptTokens, decodeTokens, runs] = ["threads", "prompt", "decode", "runs"].map(count);

const require = createRequire(`${process.env.LANEWAY_PEERS ?? process.cwd()}/`);
const { getLlama } = await import(pathToFileURL(require.resolve("node-llama-cpp")).href);

const baseBytes = peakBytes();
const started = performance.now();
const llama = await getLlama({
  gpu: values.gpu === "none" ? false : values.gpu,
  build: "never",
  logLevel: "error",
  maxThreads: threads,
});
const model = await llama.loadModel({ modelPath: positionals[0], gpuLayers: values.gpu === "none" ? 0 : "max" });
const context = await model.createContext({ contextSize: 1024, batchSize: 512, threads });
const sequence = context.getSequence();
const loadSeconds = (performance.now() - started) / 1000;

// Ids from the middle of the vocabulary are words in every model measured here.
const ids = Array.from({ length: promptTokens }, (_, i) => 1000 + ((i * 7919) % 10_000));

await measure(ids, 1);
const results = [];
for (let run = 0; run < runs; run++) results.push(await measure(ids, decodeTokens));

console.log(
  JSON.stringify({
    name: "llama.cpp",
    device: values.gpu === "none" ? "cpu" : (await llama.getGpuDeviceNames())[0],
    threads,
    prompt_tokens: promptTokens,
    decode_tokens: decodeTokens,
    load_seconds: loadSeconds,
    prefill: summary("prefill", promptTokens),
    decode: summary("decode", decodeTokens),
    peak_bytes: peakBytes(),
    peak_bytes_before_load: baseBytes,
  }),
);
// The Vulkan backend's own teardown may hang on software adapters.
process.exit(0);

async function measure(prompt, tokens) {
  await sequence.clearHistory();
  const begin = now();
  const stream = sequence.evaluate(prompt, { temperature: 0, yieldEogToken: true });
  await stream.next();
  const first = now();
  for (let i = 0; i < tokens; i++) await stream.next();
  const end = now();
  await stream.return();
  return { prefill: since(begin, first), decode: since(first, end) };
}

function now() {
  const { user, system } = process.cpuUsage();
  return { wall: performance.now() / 1000, cpu: (user + system) / 1e6 };
}

function since(a, b) {
  return { wall: b.wall - a.wall, cpu: b.cpu - a.cpu };
}

function summary(phase, tokens) {
  const wall = median(results.map((result) => result[phase].wall));
  const cpu = median(results.map((result) => result[phase].cpu));
  return { tokens_per_second: tokens / wall, tokens_per_cpu_second: tokens / cpu };
}

function median(numbers) {
  return numbers.sort((a, b) => a - b)[numbers.length >> 1];
}

function peakBytes() {
  return process.resourceUsage().maxRSS * 1024;
}
