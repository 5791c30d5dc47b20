// A file server on a free port of 127.0.0.1.

import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, normalize, sep } from "node:path";

const TYPES = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".wasm": "application/wasm",
};

// `folders` maps URL prefixes to folders; `?bytes=N` serves the first N bytes of a file.
export async function serve(folders) {
  const server = createServer(async (request, response) => {
    const url = new URL(request.url, "http://localhost");
    const path = decodeURIComponent(url.pathname).replace(/\/$/, "/index.html");
    const prefix = Object.keys(folders).find((prefix) => path.startsWith(prefix));
    const root = prefix && normalize(folders[prefix] + sep);
    const file = root && normalize(join(root, path.slice(prefix.length)));
    const found = file?.startsWith(root) && (await stat(file).catch(() => undefined));
    if (!found?.isFile()) {
      response.writeHead(404).end();
      return;
    }
    const length = Math.min(found.size, Number(url.searchParams.get("bytes") ?? found.size));
    response.writeHead(200, {
      "Content-Type": TYPES[extname(file)] ?? "application/octet-stream",
      "Content-Length": length,
      "Cross-Origin-Opener-Policy": "same-origin",
      "Cross-Origin-Embedder-Policy": "require-corp",
    });
    if (length === 0) response.end();
    else createReadStream(file, { end: length - 1 }).pipe(response);
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  return {
    origin: `http://127.0.0.1:${server.address().port}`,
    close: () => server.closeAllConnections() ?? server.close(),
  };
}
