// The page of a directory: sorting, filtering, playing, and lists for players. The table comes from the server;
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
const ASK_AGAIN = [1500, 4000, 10000]; // ms; titles that are new are looked at meanwhile
let order = { column: -1, down: false };

/** Says something to everybody, those who do not see the page too. */
function say(text) {
  said.textContent = text;
}

function rows() {
  return [...table.tBodies[0].rows].filter((row) => !row.dataset.up);
}

/** What a column is sorted by: the exact figure, or the name. */
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
    // What is not known comes last, whichever way.
    if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
    const by = compare(a.key, b.key, column);
    return down ? -by : by;
  });
  // By a fragment: a directory may have more rows than a call has room for arguments.
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

/** Buttons for what a browser can play. */
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

/** Whether the server has not looked at some titles yet. */
function isMissing() {
  return rows().some((row) => ["ts", "file"].includes(row.dataset.play) && !row.cells[2].dataset.v);
}

/** Takes the table anew from the server; the page stays as it is. */
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
    // Names begin with the first, figures with the largest.
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
  const way = { ts: () => transportStream(url, duration, true), hls: () => playlist(url), file: () => file(url) };
  way[row.dataset.play]();
}

function file(url) {
  video.src = url;
  video.play().catch(() => {});
}

function playlist(url) {
  if (video.canPlayType("application/vnd.apple.mpegurl")) return file(url);
  note.textContent = "This browser plays no HLS: open the list in a player.";
}

/** A transport stream, by Media Source Extensions; sound that the browser does not know is left out. */
async function transportStream(url, duration, sound) {
  try {
    await load("mpegts.js");
  } catch {
    note.textContent = "The player of transport streams cannot be loaded.";
    return;
  }
  if (!player.open) return;
  if (!window.mpegts.isSupported()) {
    note.textContent = "This browser plays no transport streams: open it in a player.";
    return;
  }
  window.mpegts.LoggingControl.enableAll = false;
  const source = { type: "mpegts", isLive: false, url, duration };
  if (!sound) source.hasAudio = false;
  stream = window.mpegts.createPlayer(source, { enableWorker: false, autoCleanupSourceBuffer: true });
  stream.on(window.mpegts.Events.ERROR, (kind, detail) => {
    const isMedia = kind === window.mpegts.ErrorTypes.MEDIA_ERROR;
    if (isMedia && sound && video.currentTime === 0) {
      close();
      note.textContent = "Without sound: this browser does not know its kind.";
      transportStream(url, duration, false);
    } else {
      note.textContent = "It cannot be played here (" + detail + "): open it in a player.";
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
    note.textContent = "This browser cannot play it: open it in a player.";
  }
});
player.addEventListener("close", close);
player.querySelector("button").addEventListener("click", () => player.close());

/** A list with one title, which players open. */
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

// A file that misses its place must not replace the page.
if (!document.getElementById("upload")) {
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    say("This server takes no uploads.");
  });
}
