// Uploads through the page of a directory, as somebody would:
// node page.mjs CHROMIUM URL TOKEN FILE...
import { chromium } from "playwright-core";

const [program, url, token, ...files] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath: program, args: ["--no-sandbox"] });
const page = await browser.newPage();
const complaints = [];
// A cut connection is told there as well, and 409 when what came before it is still being made
// durable: what the page does about them is the test.
const expected = (text) => text.includes("ERR_") || text.includes("status of 409");
page.on("console", (said) => {
  if (said.type() === "error" && !expected(said.text())) complaints.push(said.text());
});
page.on("pageerror", (error) => complaints.push(String(error)));
await page.goto(url);
await page.fill("input[name=token]", token);
await page.setInputFiles("input[name=files]", files);
await page.click("button[name=start]");
await page.waitForFunction(
  (count) => {
    const words = [...document.querySelectorAll("#uploads output")].map((word) => word.textContent);
    const ended = (word) => word !== "" && !word.endsWith("%") && !word.startsWith("interrupted");
    return words.length === count && words.every(ended);
  },
  files.length,
  { timeout: 90000 },
);
const words = await page.$$eval("#uploads output", (all) => all.map((word) => word.textContent));
console.log(words.join("\n"));
for (const complaint of complaints) console.error(complaint);
await browser.close();
