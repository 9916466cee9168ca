// Plays in a browser and seeks: node seek.mjs CHROMIUM URL. Each line of the input is a time in
// seconds. Prints "shown" for the first video frame, and for the first one of each target.
import { createInterface } from "node:readline";
import { openSite } from "./site.mjs";

const [program, url] = process.argv.slice(2);
const page = `<!doctype html><video id=video muted autoplay src=${JSON.stringify(url)}></video>`;
const { tab, close } = await openSite(program, page);
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
await close();
