// Runs a module of WASI in Node with the current folder: `node wasi.mjs MODULE ARGUMENT...`. Cargo calls it as a runner.
import { readFile } from "node:fs/promises";
import process from "node:process";
import { WASI } from "node:wasi";

const [module, ...args] = process.argv.slice(2);
const wasi = new WASI({ version: "preview1", args: [module, ...args], env: process.env, preopens: { ".": ".", "/tmp": process.env.TMPDIR ?? "/tmp" } });
const compiled = await WebAssembly.compile(await readFile(module));
const instance = await WebAssembly.instantiate(compiled, wasi.getImportObject());
process.exitCode = wasi.start(instance);
