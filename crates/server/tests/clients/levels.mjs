// Plays HLS with hls.js: node levels.mjs CHROMIUM PLAYLIST SECONDS. Prints as JSON
// the level of each segment in order, the stalls and the errors.
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const [program, playlist, seconds] = process.argv.slice(2);
const script = readFileSync(createRequire(import.meta.url).resolve("hls.js/dist/hls.min.js"));
const page = `<!doctype html><video id=video muted></video><script src="/hls.js"></script><script>
  window.told = { levels: [], stalls: 0, errors: [] };
  const video = document.getElementById("video");
  const hls = new Hls();
  let began = false;
  video.addEventListener("playing", () => began = true);
  video.addEventListener("waiting", () => began && window.told.stalls++);
  hls.on(Hls.Events.FRAG_BUFFERED, (_, { frag }) => {
    if (frag.sn !== "initSegment") window.told.levels.push([frag.sn, frag.level]);
  });
  hls.on(Hls.Events.ERROR, (_, data) => data.fatal && window.told.errors.push(data.details));
  hls.on(Hls.Events.MANIFEST_PARSED, () => video.play());
  hls.loadSource(${JSON.stringify(playlist)});
  hls.attachMedia(video);
</script>`;
const site = createServer((request, answer) => {
  const isScript = request.url === "/hls.js";
  answer.setHeader("Content-Type", isScript ? "text/javascript" : "text/html");
  answer.end(isScript ? script : page);
}).listen(0, "127.0.0.1");
await new Promise((done) => site.once("listening", done));

const browser = await chromium.launch({
  executablePath: program,
  args: ["--no-sandbox", "--autoplay-policy=no-user-gesture-required"],
});
const tab = await browser.newPage();
await tab.goto(`http://127.0.0.1:${site.address().port}/`);
const ended = (until) =>
  document.getElementById("video").currentTime >= until || window.told.errors.length > 0;
await tab.waitForFunction(ended, Number(seconds), { timeout: 1000 * (Number(seconds) + 60) });
console.log(JSON.stringify(await tab.evaluate(() => window.told)));
await browser.close();
site.close();
