// The page of a directory: sorting, filtering, playing, and playlists. The server sends the table;
// without this script it is a plain list of links.
"use strict";

const table = document.querySelector("table");
const tools = document.getElementById("tools");
const filter = document.getElementById("filter");
const count = document.getElementById("count");
const said = document.getElementById("said");
const player = document.getElementById("player");
const here = new URL(document.currentScript.src);
const collator = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });
const ASK_AGAIN = [1500, 4000, 10000]; // ms; the server inspects new titles meanwhile
let order = { column: -1, down: false };

/** Shows a message, which screen readers announce. */
function say(text) {
  said.textContent = text;
}

function rows() {
  return [...table.tBodies[0].rows].filter((row) => !row.dataset.up);
}

/** The sort key of a column: the exact figure, or the name. */
function key(row, column) {
  const cell = row.cells[column];
  if (column === 0) return cell.querySelector("a").textContent;
  return cell.dataset.v === undefined ? null : Number(cell.dataset.v);
}

function compare(a, b, column) {
  if (column === 0) return collator.compare(a, b);
  return a - b;
}

function sort() {
  const { column, down } = order;
  if (column < 0) return;
  const all = rows().map((row) => ({ row, key: key(row, column) }));
  all.sort((a, b) => {
    // Unknown values come last in both directions.
    if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
    const by = compare(a.key, b.key, column);
    return down ? -by : by;
  });
  // A fragment, because a call's number of arguments is limited.
  const sorted = document.createDocumentFragment();
  for (const { row } of all) sorted.append(row);
  table.tBodies[0].append(sorted);
}

function narrow() {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  const all = rows();
  for (const row of all) {
    const name = row.cells[0].querySelector("a").textContent.toLowerCase();
    row.hidden = !words.every((word) => name.includes(word));
    if (!row.hidden) shown += 1;
  }
  count.textContent = words.length ? shown + " of " + all.length : String(all.length);
}

/** Adds buttons to titles that browsers can play. */
function dress() {
  for (const row of rows()) {
    if (!row.dataset.play || row.querySelector(".play")) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "play";
    button.textContent = "▶ Play";
    button.setAttribute("aria-label", "Play " + row.cells[0].querySelector("a").textContent);
    row.cells[0].append(button);
  }
}

table.addEventListener("click", (event) => {
  const button = event.target.closest(".play");
  if (button) play(button.closest("tr"));
});

/** Whether figures of some titles are still missing. */
function isMissing() {
  return rows().some((row) => ["ts", "file"].includes(row.dataset.play) && !row.cells[2].dataset.v);
}

/** Reloads the table; the rest of the page stays. */
async function refresh() {
  const answer = await fetch(location.pathname + location.search, {
    headers: { Accept: "text/html" },
    cache: "no-store",
  });
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const body = page.querySelector("tbody");
  if (!body) return;
  table.tBodies[0].replaceWith(document.adoptNode(body));
  dress();
  sort();
  narrow();
}

async function untilKnown() {
  for (const pause of ASK_AGAIN) {
    if (!isMissing()) return;
    await new Promise((done) => setTimeout(done, pause));
    if (!player.open) await refresh().catch(() => {});
  }
}

for (const [column, head] of [...table.tHead.rows[0].cells].entries()) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = head.textContent;
  head.replaceChildren(button);
  button.addEventListener("click", () => {
    // Names sort upwards first, figures downwards.
    const down = order.column === column ? !order.down : column !== 0;
    order = { column, down };
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    sort();
  });
}

filter.addEventListener("input", narrow);
document.addEventListener("keydown", (event) => {
  const busy = event.target.closest("input, dialog, [contenteditable]");
  if (event.key === "/" && !busy && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    filter.focus();
  }
});

// ---- Playing

const video = player.querySelector("video");
const note = player.querySelector("output");
let stream = null;

function play(row) {
  const link = row.cells[0].querySelector("a");
  const url = new URL(link.getAttribute("href"), location.href).href;
  player.querySelector("h2").textContent = link.textContent;
  offer(player.querySelector("a.list"), link.textContent, url, row);
  note.textContent = "";
  player.showModal();
  video.focus();
  const duration = Number(row.cells[3].dataset.v) || undefined;
  const ways = {
    ts: () => transportStream(url, duration, true),
    hls: () => playlist(url),
    file: () => file(url),
  };
  ways[row.dataset.play]();
}

function file(url) {
  video.src = url;
  video.play().catch(() => {});
}

function playlist(url) {
  if (video.canPlayType("application/vnd.apple.mpegurl")) return file(url);
  note.textContent = "This browser does not support HLS. Open the list in a player.";
}

/** Plays a transport stream (Media Source Extensions), without audio of an unsupported codec. */
async function transportStream(url, duration, sound) {
  try {
    await load("mpegts.js");
  } catch {
    note.textContent = "The transport stream player could not be loaded.";
    return;
  }
  if (!player.open) return;
  if (!window.mpegts.isSupported()) {
    note.textContent = "This browser cannot play transport streams. Open the title in a player.";
    return;
  }
  window.mpegts.LoggingControl.enableAll = false;
  const source = { type: "mpegts", isLive: false, url, duration };
  if (!sound) source.hasAudio = false;
  const settings = { enableWorker: false, autoCleanupSourceBuffer: true };
  stream = window.mpegts.createPlayer(source, settings);
  stream.on(window.mpegts.Events.ERROR, (kind, detail) => {
    const isMedia = kind === window.mpegts.ErrorTypes.MEDIA_ERROR;
    if (isMedia && sound && video.currentTime === 0) {
      close();
      note.textContent = "No sound: this browser does not support the audio codec.";
      transportStream(url, duration, false);
    } else {
      note.textContent = "Playback failed (" + detail + "). Open the title in a player.";
    }
  });
  stream.attachMediaElement(video);
  stream.load();
  Promise.resolve(stream.play()).catch(() => {});
}

const loaded = new Map();

function load(name) {
  if (!loaded.has(name)) {
    const script = document.createElement("script");
    script.src = new URL(name, here).href;
    const done = new Promise((ready, fail) => {
      script.onload = ready;
      script.onerror = () => {
        loaded.delete(name);
        fail(new Error(name));
      };
    });
    document.head.append(script);
    loaded.set(name, done);
  }
  return loaded.get(name);
}

function close() {
  if (stream) {
    stream.destroy();
    stream = null;
  }
  video.removeAttribute("src");
  video.load();
}

video.addEventListener("error", () => {
  if (!stream && video.getAttribute("src")) {
    note.textContent = "This browser cannot play the title. Open it in a player.";
  }
});
player.addEventListener("close", close);
player.querySelector("button").addEventListener("click", () => player.close());

/** Offers a playlist with one title, for players. */
function offer(link, name, url, row) {
  URL.revokeObjectURL(link.href);
  const seconds = Math.round((Number(row.cells[3].dataset.v) || -1000) / 1000);
  const plain = name.replace(/[\r\n]/g, " ");
  const text = "#EXTM3U\n#EXTINF:" + seconds + "," + plain + "\n" + url + "\n";
  link.href = URL.createObjectURL(new Blob([text], { type: "audio/x-mpegurl" }));
  link.download = plain.replace(/\.[^.]*$/, "") + ".m3u";
}

tools.hidden = false;
dress();
narrow();
untilKnown();

// A file dropped outside the form must not replace the page.
if (!document.getElementById("upload")) {
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    say("This server accepts no uploads.");
  });
}
