// Plays HLS with hls.js on a page of another site: node hls.mjs CHROMIUM PLAYLIST. Prints as JSON
// the position, the errors, and the CMCD data of its segment requests.
import { open } from "./hls_page.mjs";

const [program, playlist] = process.argv.slice(2);
const asked = [];
const noteRequests = (tab) =>
  tab.on("request", (request) => {
    if (request.url().includes(".ts")) asked.push(request.headers()["cmcd-object"] ?? "");
  });
const { tab, close } = await open(program, playlist, `
  window.errors = [];
  const hls = new Hls({ cmcd: { sessionId: "0f9a", contentId: "film", useHeaders: true } });
  hls.on(Hls.Events.ERROR, (_, data) => data.fatal && window.errors.push(data.details));
`, noteRequests);
const ended = () => document.getElementById("video").currentTime > 1.5 || window.errors.length > 0;
await tab.waitForFunction(ended, undefined, { timeout: 60000 });
const told = await tab.evaluate(() => ({
  time: document.getElementById("video").currentTime,
  errors: window.errors,
}));
console.log(JSON.stringify({ ...told, asked }));
await close();
