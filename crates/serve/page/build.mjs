// Builds the page into dist/. With --check, compares dist/ with a fresh build instead of writing it.
import { readFile, writeFile, mkdir } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import path from "node:path";
import esbuild from "esbuild";

const here = path.dirname(fileURLToPath(import.meta.url));
const dist = path.join(here, "dist");

async function bundle(entry, extra = {}) {
  const built = await esbuild.build({
    entryPoints: [path.join(here, "src", entry)],
    bundle: true,
    minify: true,
    write: false,
    charset: "utf8",
    legalComments: "none",
    target: ["chrome111", "firefox113", "safari16.4"],
    ...extra,
  });
  return built.outputFiles[0].contents;
}

// Markup needs no parser to lose its indentation: no element of the page keeps white space.
const squeezed = (markup) => Buffer.from(`${markup.replace(/<!--[^]*?-->/g, "").replace(/\s*\n\s*/g, "\n").trim()}\n`);

const files = {
  "index.html": squeezed(await readFile(path.join(here, "src/index.html"), "utf8")),
  "icon.svg": squeezed(await readFile(path.join(here, "src/icon.svg"), "utf8")),
  "page.js": await bundle("main.ts", { format: "iife" }),
  "page.css": await bundle("page.css"),
};

const checks = process.argv.includes("--check");
let total = 0;
for (const [name, contents] of Object.entries(files)) {
  const file = path.join(dist, name);
  total += contents.length;
  if (checks) {
    const committed = await readFile(file).catch(() => Buffer.alloc(0));
    if (!committed.equals(Buffer.from(contents))) {
      console.error(`error: dist/${name} is not what src/ gives; run \`npm run build\` in crates/serve/page`);
      process.exitCode = 1;
    }
  } else {
    await mkdir(dist, { recursive: true });
    await writeFile(file, contents);
  }
  console.log(`${name} ${contents.length} bytes`);
}
console.log(`${total} bytes in all`);
