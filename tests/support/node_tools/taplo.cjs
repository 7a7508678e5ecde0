// Taplo's language server, which editors' extensions have, on standard input and output. Argument: its package.
"use strict";
const fs = require("node:fs");
const path = require("node:path");
const { fileURLToPath } = require("node:url");
const { TaploLsp } = require(process.argv[2]);

const environment = {
  now: () => new Date(),
  envVar: (name) => process.env[name],
  envVars: () => Object.entries(process.env),
  stdErrAtty: () => false,
  stdin: process.stdin,
  stdout: process.stderr,
  stderr: process.stderr,
  glob: () => [],
  readFile: (name) => fs.promises.readFile(name),
  writeFile: (name, bytes) => fs.promises.writeFile(name, bytes),
  urlToFilePath: (url) => (url.startsWith("file:") ? fileURLToPath(url) : url),
  isAbsolute: (name) => path.isAbsolute(name),
  cwd: () => process.cwd(),
  findConfigFile: () => undefined,
  fetch: { fetch, Headers, Request, Response },
};

function write(message) {
  const content = Buffer.from(JSON.stringify(message));
  process.stdout.write(`Content-Length: ${content.length}\r\n\r\n`);
  process.stdout.write(content);
}

TaploLsp.initialize(environment, { onMessage: write }).then((server) => {
  let held = Buffer.alloc(0);
  process.stdin.on("data", (bytes) => {
    held = Buffer.concat([held, bytes]);
    for (;;) {
      const end = held.indexOf("\r\n\r\n");
      const header = end < 0 ? null : /Content-Length: (\d+)/.exec(held.subarray(0, end).toString());
      const length = header ? Number(header[1]) : Infinity;
      if (held.length < end + 4 + length) return;
      server.send(JSON.parse(held.subarray(end + 4, end + 4 + length).toString()));
      held = held.subarray(end + 4 + length);
    }
  });
});
