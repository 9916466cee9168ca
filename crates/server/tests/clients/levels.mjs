// Plays HLS with hls.js: node levels.mjs CHROMIUM PLAYLIST SECONDS. Prints as JSON
// the level of each segment in order, the stalls and the errors.
import { open } from "./hls_page.mjs";

const [program, playlist, seconds] = process.argv.slice(2);
const { tab, close } = await open(program, playlist, `
  window.told = { levels: [], stalls: 0, errors: [] };
  const hls = new Hls();
  let began = false;
  video.addEventListener("playing", () => began = true);
  video.addEventListener("waiting", () => began && window.told.stalls++);
  hls.on(Hls.Events.FRAG_BUFFERED, (_, { frag }) => {
    if (frag.sn !== "initSegment") window.told.levels.push([frag.sn, frag.level]);
  });
  hls.on(Hls.Events.ERROR, (_, data) => data.fatal && window.told.errors.push(data.details));
`);
const ended = (until) =>
  document.getElementById("video").currentTime >= until || window.told.errors.length > 0;
await tab.waitForFunction(ended, Number(seconds), { timeout: 1000 * (Number(seconds) + 60) });
console.log(JSON.stringify(await tab.evaluate(() => window.told)));
await close();
