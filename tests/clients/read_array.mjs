// Read arrays with zarrita.js and print a checksum of their values: read_array.py in JavaScript.
//
//     node read_array.mjs NODE_DIR JOBS     NODE_DIR holds node_modules
//
// Input and output lines are those of read_array.py; the path of an array may be a URL of a web server.

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [nodeDir, jobsFile] = process.argv.slice(2);

// The modules lie elsewhere than this file, so node would not find them by name.
const load = (file) => import(pathToFileURL(resolve(nodeDir, "node_modules", file)).href);
const zarr = await load("zarrita/dist/src/index.js");
const { default: FileSystemStore } = await load("@zarrita/storage/dist/src/fs.js");

// The bytes of what zarr.get gave: a chunk with strides, or a bare value for rank 0.
function bytesOf(result, dtype) {
    if (typeof result !== "object") {
        const holders = { float64: Float64Array, float32: Float32Array, int32: Int32Array };
        if (!(dtype in holders)) throw new Error(`no way here to hash a bare ${dtype}`);
        return Buffer.from(holders[dtype].of(result).buffer);
    }
    const { data } = result;
    if (data.buffer === undefined) {
        const texts = Array.from(data, (text) => {
            const utf8 = Buffer.from(String(text));
            const length = Buffer.alloc(4);
            length.writeUInt32LE(utf8.length);
            return Buffer.concat([length, utf8]);
        });
        return Buffer.concat(texts);
    }
    return Buffer.from(data.buffer, data.byteOffset, data.byteLength);
}

// The values in C order; zarrita keeps the order in which a transpose codec stored them.
function inCOrder(result) {
    if (typeof result !== "object") return result;
    const { shape, stride } = result;
    const steps = shape.map((_, d) => shape.slice(d + 1).reduce((a, b) => a * b, 1));
    if (shape.every((n, d) => n === 1 || stride[d] === steps[d])) return result;
    const data = new result.data.constructor(result.data.length);
    for (let i = 0; i < data.length; i++) {
        let from = 0;
        for (let d = 0; d < shape.length; d++) from += (Math.floor(i / steps[d]) % shape[d]) * stride[d];
        data[i] = result.data[from];
    }
    return { data, shape, stride: steps };
}

async function read(job) {
    const Store = job.path.startsWith("http://") ? zarr.FetchStore : FileSystemStore;
    const array = await zarr.open.v3(new Store(job.path), { kind: "array" });
    const digest = createHash("sha256");
    for (const region of job.regions ?? [null]) {
        const selection = region === null ? null : region.map(([a, b]) => zarr.slice(a, b));
        const result = inCOrder(await zarr.get(array, selection));
        digest.update(bytesOf(result, array.dtype));
    }
    return { sha256: digest.digest("hex"), shape: array.shape };
}

for (const line of readFileSync(jobsFile, "utf8").split("\n").filter(Boolean)) {
    const job = JSON.parse(line);
    const start = performance.now();
    let result;
    try {
        result = await read(job);
    } catch (error) {
        result = { error: `${error?.name ?? "Error"}: ${error?.message ?? error}`.slice(0, 300) };
    }
    result.seconds = Math.round(performance.now() - start) / 1000;
    console.log(JSON.stringify({ id: job.id, ...result }));
}
