// The page's side of worker.js: every call returns a promise.

export function openWorker() {
  const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  const waiting = new Map();
  let next = 0;

  function failAll(message) {
    for (const { reject } of waiting.values()) reject(new Error(message));
    waiting.clear();
  }

  worker.addEventListener("message", ({ data: { id, value, error } }) => {
    const { resolve, reject } = waiting.get(id) ?? {};
    waiting.delete(id);
    if (error === undefined) resolve?.(value);
    else reject?.(new Error(error));
  });
  // The worker's script or one of its imports did not load.
  worker.addEventListener("error", (event) => failAll(event.message ?? "the worker did not start"));

  function call(name, args, transfer = []) {
    return new Promise((resolve, reject) => {
      const id = next++;
      waiting.set(id, { resolve, reject });
      worker.postMessage({ id, call: name, ...args }, transfer);
    });
  }

  return {
    // Takes the buffer away from the page.
    load: (bytes, contextLength) => call("load", { bytes, contextLength }, [bytes]),
    generate: (prompt, count) => call("generate", { prompt, count }),
    stepTimings: (count) => call("stepTimings", { count }),
    loseDevice: () => call("loseDevice", {}),
    burnLaunch: (count) => call("burnLaunch", { count }),
    close() {
      worker.terminate();
      failAll("the worker was closed");
    },
  };
}
