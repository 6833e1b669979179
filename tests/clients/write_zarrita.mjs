// A hierarchy as zarrita.js makes it over Node's files: write_zarrita.mjs NODE_MODULES DIR
import { pathToFileURL } from "node:url";

const [modules, directory] = process.argv.slice(2);
const load = (path) => import(pathToFileURL(`${modules}/${path}`));
const zarr = await load("zarrita/dist/src/index.js");
const { default: FileSystemStore } = await load("@zarrita/storage/dist/src/fs.js");
const root = zarr.root(new FileSystemStore(directory));
const bytes = { name: "bytes", configuration: { endian: "little" } };

await zarr.create(root, { attributes: { title: "zarrita" } });
const array = await zarr.create(root.resolve("array"), {
    shape: [96, 60], chunkShape: [16, 16], dtype: "float32", fillValue: 0, attributes: { unit: "m" }, codecs: [bytes],
    dimensionNames: ["y", "x"],
});
const data = new Float32Array(96 * 60).map((_, n) => n % 1013);
await zarr.set(array, null, { data, shape: [96, 60], stride: [60, 1] });
await zarr.create(root.resolve("group"), { attributes: {} });
const parts = await zarr.create(root.resolve("group/parts"), {
    shape: [40, 32, 32], chunkShape: [8, 16, 16], dtype: "uint16", fillValue: 0, codecs: [bytes],
});
await zarr.set(parts, [zarr.slice(0, 20), null, null], 9);
await zarr.set(parts, [zarr.slice(3, 11), zarr.slice(5, 30), zarr.slice(1, 32, 2)], 17);
