// Uses the page of a directory like a visitor: node browse.mjs CHROMIUM URL TOKEN FILE SCREENSHOT.
// The test checks what it prints; browser errors go to standard error.
import { chromium } from "playwright-core";
import { readFile } from "node:fs/promises";

const [program, url, token, file, screenshot] = process.argv.slice(2);
const args = ["--no-sandbox", "--autoplay-policy=no-user-gesture-required"];
const browser = await chromium.launch({ executablePath: program, args });
const page = await browser.newPage({ viewport: { width: 1100, height: 640 } });
page.on("console", (said) => {
  if (said.type() === "error") console.error(said.text());
});
page.on("pageerror", (error) => console.error(String(error)));
const tell = (name, value) => console.log(name + ": " + value);
const names = () =>
  page.$$eval("tbody tr:not([data-up]):not([hidden]) td:first-child a", (all) =>
    all.map((link) => link.textContent).join(" "),
  );

await page.goto(url + "#token=" + token);
tell("address", new URL(page.url()).hash || "clean");
tell("title", await page.title());
await page.waitForFunction(
  () => [...document.querySelectorAll("tr[data-play]")].every((row) => row.cells[2].dataset.v),
  null,
  { timeout: 30000 },
);
tell("rates", "all");
tell("listed", await names());

// Sorting, by keyboard too.
const head = (nth) => page.locator("th button").nth(nth);
await head(1).click();
tell("by size", await names());
await head(1).press("Enter");
tell("by size, smallest first", await names());
tell("sorted", await page.locator("th").nth(1).getAttribute("aria-sort"));
await head(0).click();
await page.keyboard.press("/");
await page.keyboard.type("MP4");
tell("filtered", await names());
tell("count", await page.textContent("#count"));
await page.fill("#filter", "");
if (screenshot) await page.screenshot({ path: screenshot });

// Drops a file on the page. The page stays and lists the file. The token came with the link.
const bytes = [...(await readFile(file))];
const transfer = await page.evaluateHandle((bytes) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([new Uint8Array(bytes)], "dropped & <b>.bin"));
  return transfer;
}, bytes);
await page.dispatchEvent("footer", "dragover", { dataTransfer: transfer });
await page.dispatchEvent("footer", "drop", { dataTransfer: transfer });
await page.waitForFunction(() => {
  return document.querySelector("#uploads output")?.textContent === "stored";
});
await page.waitForFunction(() => document.querySelector("tbody").textContent.includes("dropped"));
tell("after the drop", await names());
await page.reload();
tell("kept", (await page.inputValue("input[name=token]")) === token);

// Checks for video frames, not only for a running clock.
const watch = async (name) => {
  await page.locator("tr", { hasText: name }).locator(".play").click();
  const seen = await page.waitForFunction(
    () => {
      const video = document.querySelector("dialog video");
      if (!video.videoWidth || video.currentTime < 0.5) return false;
      const canvas = document.createElement("canvas");
      canvas.width = canvas.height = 32;
      const context = canvas.getContext("2d");
      context.drawImage(video, 0, 0, 32, 32);
      const pixels = context.getImageData(0, 0, 32, 32).data;
      const shades = new Set(pixels.filter((_, nth) => nth % 4 === 0));
      const frames = video.getVideoPlaybackQuality().totalVideoFrames;
      return shades.size > 4 && frames > 5 && video.videoWidth + "x" + video.videoHeight;
    },
    null,
    { timeout: 40000, polling: 200 },
  );
  tell("watched " + name, await seen.jsonValue());
  tell("note", (await page.textContent("dialog output")) || "none");
  tell("list", await page.getAttribute("dialog a.list", "download"));
  await page.keyboard.press("Escape");
  tell("closed", !(await page.$eval("dialog", (dialog) => dialog.open)));
};
await watch("tactus-demo.mp4");
await watch("tactus-demo.ts");

// A missing page has links back.
const answer = await page.goto(new URL("nowhere/at/all.ts", url).href);
tell("nothing", answer.status() + " " + (await page.title()));
await page.click("text=The top");
tell("back", new URL(page.url()).pathname);
await browser.close();
