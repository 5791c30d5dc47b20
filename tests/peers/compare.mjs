// Runs `laneway bench` and llama.cpp by turns on one file and prints medians, ratios and targets:
//   node compare.mjs LANEWAY FILE [SCENARIO…]      scenarios: cpu1 cpu2 lavapipe

import { execFileSync } from "node:child_process";
import { fileURLToPath } from "node:url";

const [laneway, file, ...wanted] = process.argv.slice(2);
const peer = fileURLToPath(new URL("llama.mjs", import.meta.url));

// On the software adapter CPU time is compared: it does not depend on what else the machine does.
const scenarios = [
  { name: "cpu1", device: "cpu", threads: 1, prompt: 128, decode: 32, rounds: 5, targets: { prefill: 0.4, decode: 0.6 } },
  { name: "cpu2", device: "cpu", threads: 2, prompt: 128, decode: 32, rounds: 5, targets: { prefill: 0.4, decode: 0.6 } },
  { name: "lavapipe", device: "lavapipe", threads: 1, prompt: 32, decode: 6, rounds: 3, targets: { prefill: 2.5, decode: 5 } },
].filter(({ name }) => wanted.length === 0 || wanted.includes(name));

const json = (program, args, env = {}) =>
  JSON.parse(execFileSync(program, args.map(String), { env: { ...process.env, ...env }, stdio: ["ignore", "pipe", "inherit"] }));

// The first of three runs compiles shaders; the median is a later one.
function measureLaneway({ device, threads, prompt, decode }) {
  const args = ["bench", "--json", "--model", file, "--device", device, "--threads", threads, "--prompt", prompt];
  const report = json(laneway, [...args, "--generate", decode + 1, "--runs", 3]);
  return {
    prefill: { second: report.prefill_tokens_per_s, cpuSecond: 1 / report.prefill_cpu_s_per_token },
    decode: { second: report.decode_tokens_per_s, cpuSecond: 1 / report.decode_cpu_s_per_token },
    peakBytes: report.peak_memory_bytes,
  };
}

function measureLlama({ device, threads, prompt, decode }) {
  const gpu = device === "cpu" ? ["none", 3] : ["vulkan", 1];
  const args = [peer, file, "--gpu", gpu[0], "--runs", gpu[1], "--threads", threads, "--prompt", prompt, "--decode", decode];
  const report = json(process.execPath, args, { GGML_VK_VISIBLE_DEVICES: "0" });
  const rates = ({ tokens_per_second, tokens_per_cpu_second }) => ({ second: tokens_per_second, cpuSecond: tokens_per_cpu_second });
  return {
    prefill: rates(report.prefill),
    decode: rates(report.decode),
    // Node.js itself is no part of llama.cpp.
    peakBytes: report.peak_bytes - report.peak_bytes_before_load,
  };
}

const median = (numbers) => [...numbers].sort((a, b) => a - b)[numbers.length >> 1];
const rows = [["", "", "Laneway", "llama.cpp", "ratio", "target"]];

for (const scenario of scenarios) {
  const ours = [];
  const theirs = [];
  for (let round = 1; round <= scenario.rounds; round++) {
    console.error(`${scenario.name}: round ${round} of ${scenario.rounds}`);
    ours.push(measureLaneway(scenario));
    theirs.push(measureLlama(scenario));
  }
  const row = (label, target, digits, pick) => {
    const [a, b] = [ours, theirs].map((runs) => median(runs.map(pick)));
    rows.push([scenario.name, label, a.toFixed(digits), b.toFixed(digits), (a / b).toFixed(2), target]);
  };
  const { prompt, decode, targets } = scenario;
  const counted = scenario.device === "cpu" ? "second" : "cpuSecond";
  for (const [rate, unit] of [["second", "tokens/s"], ["cpuSecond", "tokens/CPU-s"]]) {
    const target = (phase) => (rate === counted ? `>= ${targets[phase]}` : "");
    row(`prefill ${prompt}, ${unit}`, target("prefill"), 2, (run) => run.prefill[rate]);
    row(`decode ${decode}, ${unit}`, target("decode"), 2, (run) => run.decode[rate]);
  }
  row("peak memory, MB", scenario.device === "cpu" ? "<= 1.5" : "", 0, (run) => run.peakBytes / 1e6);
}

const widths = rows[0].map((_, column) => Math.max(...rows.map((row) => row[column].length)));
for (const row of rows) console.log(row.map((cell, column) => cell.padEnd(widths[column])).join("  ").trimEnd());
