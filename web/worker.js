// Owns the wasm module and one model. Messages in: {id, call, ...arguments}; out: {id, value} or {id, error}.

import start, * as laneway from "./pkg/laneway_web.js";

const started = start();
started.catch(() => {}); // Each call reports it.
const unanswered = new Set();
let model;
let broken;

const loaded = () => {
  if (!model) throw new Error("no model is loaded");
  return model;
};

const calls = {
  async load({ bytes, contextLength }) {
    model?.free();
    model = undefined;
    model = await laneway.Model.load(new Uint8Array(bytes), contextLength);
    return model.describe();
  },
  generate: ({ prompt, count }) => loaded().generate(Uint32Array.from(prompt), count),
  stepTimings: ({ count }) => loaded().stepTimings(count),
  loseDevice: () => loaded().loseDevice(),
  burnLaunch({ count }) {
    if (!laneway.burnLaunch) throw new Error("this build lacks the feature `measure`");
    return laneway.burnLaunch(count);
  },
};

function answer(id, reply) {
  if (unanswered.delete(id)) postMessage({ id, ...reply });
}

async function serve({ id, call, ...args }) {
  unanswered.add(id);
  try {
    await started;
    if (broken) throw new Error(broken);
    if (!Object.hasOwn(calls, call)) throw new Error(`unknown call ${call}`);
    answer(id, { value: await calls[call](args) });
  } catch (error) {
    answer(id, { error: String(error?.message ?? error) });
  }
}

// A trap or an exception in wasm ends its task and may leave promises open: whoever waits must hear of it.
function fail(error) {
  const message = `internal error, start a new worker: ${error?.message ?? error}`;
  if (error instanceof WebAssembly.RuntimeError) broken = message;
  // A panic rejects its promises with a better message, but in microtasks that come after this event.
  setTimeout(() => {
    for (const id of [...unanswered]) answer(id, { error: message });
  });
}

for (const type of ["error", "unhandledrejection"]) {
  addEventListener(type, (event) => {
    const error = event.reason ?? event.error ?? event.message;
    console.error(error);
    // The page would take it for a worker that did not start.
    event.preventDefault();
    fail(error);
  });
}
addEventListener("message", (event) => void serve(event.data));
