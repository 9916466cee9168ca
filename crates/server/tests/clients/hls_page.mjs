// A page with hls.js, of a site of its own, in Chromium.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { openSite } from "./site.mjs";

// Opens the page, whose script makes `hls` for `video`, and plays the playlist. `onTab` gets the
// tab before anything is requested. Returns the tab and what closes it all.
export function open(program, playlist, script, onTab) {
  const library = readFileSync(createRequire(import.meta.url).resolve("hls.js/dist/hls.min.js"));
  const page = `<!doctype html><video id=video muted></video>
  <script src="/library.js"></script><script>
    const video = document.getElementById("video");
    ${script}
    hls.on(Hls.Events.MANIFEST_PARSED, () => video.play());
    hls.loadSource(${JSON.stringify(playlist)});
    hls.attachMedia(video);
  </script>`;
  return openSite(program, page, library, onTab);
}
