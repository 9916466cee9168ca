// A page with hls.js, of a site of its own, in Chromium.
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

// Opens the page, whose script makes `hls` for `video`, and plays the playlist. `onTab` gets the
// tab before anything is requested. Returns the tab and what closes it all.
export async function open(program, playlist, script, onTab = () => {}) {
  const library = readFileSync(createRequire(import.meta.url).resolve("hls.js/dist/hls.min.js"));
  const page = `<!doctype html><video id=video muted></video><script src="/hls.js"></script><script>
    const video = document.getElementById("video");
    ${script}
    hls.on(Hls.Events.MANIFEST_PARSED, () => video.play());
    hls.loadSource(${JSON.stringify(playlist)});
    hls.attachMedia(video);
  </script>`;
  const site = createServer((request, answer) => {
    const isLibrary = request.url === "/hls.js";
    answer.setHeader("Content-Type", isLibrary ? "text/javascript" : "text/html");
    answer.end(isLibrary ? library : page);
  }).listen(0, "127.0.0.1");
  await new Promise((done) => site.once("listening", done));

  const browser = await chromium.launch({
    executablePath: program,
    args: ["--no-sandbox", "--autoplay-policy=no-user-gesture-required"],
  });
  const tab = await browser.newPage();
  onTab(tab);
  await tab.goto(`http://127.0.0.1:${site.address().port}/`);
  const close = async () => {
    await browser.close();
    site.close();
  };
  return { tab, close };
}
