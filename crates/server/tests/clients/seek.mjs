// Plays in a browser and seeks: node seek.mjs CHROMIUM URL. Each line of the input is a time in
// seconds. Prints "shown" for the first video frame, and for the first one of each target.
import { createServer } from "node:http";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const [program, url] = process.argv.slice(2);
const page = `<!doctype html><video id=video muted autoplay src=${JSON.stringify(url)}></video>`;
const site = createServer((_, answer) => {
  answer.setHeader("Content-Type", "text/html");
  answer.end(page);
}).listen(0, "127.0.0.1");
await new Promise((done) => site.once("listening", done));
const browser = await chromium.launch({
  executablePath: program,
  args: ["--no-sandbox", "--autoplay-policy=no-user-gesture-required"],
});
const tab = await browser.newPage();
await tab.goto(`http://127.0.0.1:${site.address().port}/`);
await tab.waitForFunction(() => document.getElementById("video").currentTime > 0);
console.log("shown");
for await (const line of createInterface({ input: process.stdin })) {
  const seek = (target) =>
    new Promise((done) => {
      const video = document.getElementById("video");
      const look = (_, frame) => {
        const isThere = Math.abs(frame.mediaTime - target) < 1;
        if (isThere) done(true);
        else video.requestVideoFrameCallback(look);
      };
      video.currentTime = target;
      video.requestVideoFrameCallback(look);
      setTimeout(() => done(false), 20000);
    });
  if (await tab.evaluate(seek, Number(line))) console.log("shown");
}
await browser.close();
site.close();
