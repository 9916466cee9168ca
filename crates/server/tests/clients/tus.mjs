// Uploads one file with tus-js-client: node tus.mjs FILE ENDPOINT TOKEN PATH [PARTS]
// It goes on by itself after errors, as an application would let it.
import fs from "node:fs";
import * as tus from "tus-js-client";

const [file, endpoint, token, path, parts] = process.argv.slice(2);
const parallelUploads = Number(parts || 1);
const upload = new tus.Upload(fs.createReadStream(file), {
  endpoint,
  uploadSize: parallelUploads === 1 ? fs.statSync(file).size : null,
  parallelUploads,
  retryDelays: Array(40).fill(250),
  headers: { Authorization: "Bearer " + token },
  metadata: { filename: path.split("/").pop(), path },
  onError: (error) => {
    console.error(String(error));
    process.exit(1);
  },
  onSuccess: () => console.log("stored"),
});
upload.start();
