// A page of a site of its own, in Chromium.
import { createServer } from "node:http";
import { chromium } from "playwright-core";

// Opens `page`; its script at /library.js is `library`. `onTab` gets the tab before anything is
// requested. Returns the tab and what closes it all.
export async function openSite(program, page, library = "", onTab = () => {}) {
  const site = createServer((request, answer) => {
    const isLibrary = request.url === "/library.js";
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
