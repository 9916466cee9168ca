// Plays HLS with hls.js on a page of another site: node hls.mjs CHROMIUM PLAYLIST. Prints as JSON
// the position, the errors, and the CMCD data of its segment requests.
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const [program, playlist] = process.argv.slice(2);
const script = readFileSync(createRequire(import.meta.url).resolve("hls.js/dist/hls.min.js"));
const page = `<!doctype html><video id=video muted></video><script src="/hls.js"></script><script>
  window.errors = [];
  const hls = new Hls({ cmcd: { sessionId: "0f9a", contentId: "film", useHeaders: true } });
  hls.on(Hls.Events.ERROR, (_, data) => data.fatal && window.errors.push(data.details));
  hls.on(Hls.Events.MANIFEST_PARSED, () => document.getElementById("video").play());
  hls.loadSource(${JSON.stringify(playlist)});
  hls.attachMedia(document.getElementById("video"));
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
const asked = [];
tab.on("request", (request) => {
  if (request.url().includes(".ts")) asked.push(request.headers()["cmcd-object"] ?? "");
});
await tab.goto(`http://127.0.0.1:${site.address().port}/`);
const ended = () => document.getElementById("video").currentTime > 1.5 || window.errors.length > 0;
await tab.waitForFunction(ended, undefined, { timeout: 60000 });
const told = await tab.evaluate(() => ({
  time: document.getElementById("video").currentTime,
  errors: window.errors,
}));
console.log(JSON.stringify({ ...told, asked }));
await browser.close();
site.close();
