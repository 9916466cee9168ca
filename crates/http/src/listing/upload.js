// Uploads from the page of a directory, by tus 1.0 and the browser's own means. A file is sent in
// one request; after an interruption it continues at the offset that the server returns. The upload
// of each file is stored until it is done, so that it can continue after the page was closed. The
// token is stored for the session of the tab only.
"use strict";

const form = document.getElementById("upload");
const list = document.getElementById("uploads");
const UPLOADS = new URL("uploads", document.currentScript.src).pathname;
const PAUSE_MAX = 30; // seconds between two tries
const TRIES = 20; // without a byte more
const KEY = "tactus-token";
const waiting = []; // files dropped before a token was entered

form.hidden = false;
const token = form.elements.token;
// A link may contain the token. It is removed from the address at once.
const given = /^#token=([\x21-\x7e]+)$/.exec(location.hash);
if (given) {
  sessionStorage.setItem(KEY, decodeURIComponent(given[1]));
  history.replaceState(null, "", location.pathname + location.search);
}
token.value = sessionStorage.getItem(KEY) || "";
token.addEventListener("change", () => sessionStorage.setItem(KEY, token.value.trim()));

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const files = [...form.elements.files.files].map((file) => ({ file, name: file.name }));
  const isWhole = await uploadAll([...waiting.splice(0), ...files]);
  if (isWhole) form.elements.files.value = "";
});

document.addEventListener("dragover", (event) => {
  if (![...event.dataTransfer.types].includes("Files")) return;
  event.preventDefault();
  document.body.classList.add("dropping");
});
document.addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) document.body.classList.remove("dropping");
});
document.addEventListener("drop", async (event) => {
  event.preventDefault();
  document.body.classList.remove("dropping");
  const files = await dropped(event.dataTransfer);
  if (token.value.trim()) return uploadAll(files);
  waiting.push(...files);
  form.elements.files.required = false;
  say(waiting.length + " files wait for the token");
  token.focus();
});

/** The files that were dropped, with their paths within directories. */
async function dropped(transfer) {
  const items = [...transfer.items];
  const entries = items.map((item) => item.webkitGetAsEntry && item.webkitGetAsEntry());
  if (!entries.some(Boolean)) return [...transfer.files].map((file) => ({ file, name: file.name }));
  const found = [];
  const take = async (entry, above) => {
    const name = above + entry.name;
    if (entry.isFile) {
      const file = await new Promise((done, fail) => entry.file(done, fail));
      found.push({ file, name });
      return;
    }
    const reader = entry.createReader();
    for (;;) {
      const some = await new Promise((done, fail) => reader.readEntries(done, fail));
      if (some.length === 0) return;
      for (const each of some) await take(each, name + "/");
    }
  };
  for (const entry of entries.filter(Boolean)) await take(entry, "");
  return found;
}

/** Whether all of them are stored. */
async function uploadAll(files) {
  const word = token.value.trim();
  sessionStorage.setItem(KEY, word);
  const replace = form.elements.replace.checked;
  form.elements.start.disabled = true;
  form.elements.files.required = true;
  const lines = files.map(({ name }) => line(name));
  let stored = 0;
  for (const [nth, { file, name }] of files.entries()) {
    if (await upload(file, name, word, replace, lines[nth])) stored += 1;
    else lines[nth].item.className = "failed";
  }
  form.elements.start.disabled = false;
  if (stored > 0) await refresh().catch(() => {});
  say(stored + " of " + files.length + " stored");
  const isWhole = stored === files.length;
  if (isWhole && stored > 0) list.dataset.done = "yes";
  return isWhole;
}

/** A line of the page for one file. Names are text, never markup. */
function line(name) {
  const item = document.createElement("li");
  const label = document.createElement("span");
  const bar = document.createElement("progress");
  const word = document.createElement("output");
  const stop = document.createElement("button");
  label.textContent = name;
  stop.textContent = "Cancel";
  stop.type = "button";
  item.append(label, " ", bar, " ", word, " ", stop);
  list.append(item);
  const line = { item, bar, word, stopped: false, request: null };
  line.say = (text) => (word.textContent = text);
  stop.addEventListener("click", () => {
    line.stopped = true;
    if (line.request) line.request.abort();
  });
  line.end = (text) => {
    stop.remove();
    line.say(text);
  };
  return line;
}

async function upload(file, name, token, replace, line) {
  const path = form.dataset.directory + name;
  const key = ["tactus", path, file.size, file.lastModified].join(" ");
  const headers = { "Tus-Resumable": "1.0.0", Authorization: "Bearer " + token };
  const ask = (method, url, more) =>
    fetch(url, { method, headers: { ...headers, ...more }, credentials: "omit", cache: "no-store" });
  let url = localStorage.getItem(key);
  let tries = 0;
  let best = -1;
  line.bar.max = file.size || 1;
  while (tries < TRIES) {
    if (line.stopped) {
      if (url) await ask("DELETE", url).catch(() => {});
      localStorage.removeItem(key);
      line.end("cancelled");
      return false;
    }
    try {
      let offset = 0;
      if (url) {
        const answer = await ask("HEAD", url);
        if (answer.status === 404 || answer.status === 410) url = null;
        else if (answer.ok) offset = Number(answer.headers.get("Upload-Offset"));
        else throw await refusal(answer);
      }
      if (!url) {
        const more = { "Upload-Length": String(file.size) };
        if (!replace) more["If-None-Match"] = "*";
        const answer = await ask("POST", UPLOADS + "?path=" + encodeURIComponent(path), more);
        if (answer.status !== 201) throw await refusal(answer);
        url = answer.headers.get("Location");
        localStorage.setItem(key, url);
      }
      if (offset > best) [best, tries] = [offset, 0];
      if (offset < file.size) await send(file, url, offset, headers, line);
      localStorage.removeItem(key);
      line.bar.value = line.bar.max;
      line.end("stored");
      return true;
    } catch (error) {
      if (error.final) {
        localStorage.removeItem(key);
        line.end(error.message);
        return false;
      }
      tries += 1;
      if (!line.stopped) {
        line.say("interrupted; it goes on by itself");
        const seconds = Math.min(2 ** tries / 4, PAUSE_MAX);
        await new Promise((done) => setTimeout(done, seconds * 1000));
      }
    }
  }
  line.end("the server cannot be reached; upload it again to go on");
  return false;
}

/** Sends the rest of a file. XMLHttpRequest, because only it tells how much has been sent. */
function send(file, url, offset, headers, line) {
  return new Promise((done, fail) => {
    const request = new XMLHttpRequest();
    line.request = request;
    request.open("PATCH", url);
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.setRequestHeader("Upload-Offset", String(offset));
    request.setRequestHeader("Content-Type", "application/offset+octet-stream");
    request.upload.onprogress = (event) => {
      line.bar.value = offset + event.loaded;
      line.say(Math.floor((100 * (offset + event.loaded)) / file.size) + " %");
    };
    request.onload = () => {
      if (request.status === 204) done();
      else fail(problem(request.status, request.responseText));
    };
    request.onerror = request.onabort = () => fail(new Error("interrupted"));
    request.send(file.slice(offset));
  });
}

async function refusal(answer) {
  return problem(answer.status, await answer.text());
}

/** What an answer means; final when trying again is of no use. */
function problem(status, text) {
  if (status === 401) sessionStorage.removeItem(KEY);
  const words = {
    401: "the server refused the token; check it",
    412: "there is a title of this name; tick “replace” to replace it",
  };
  const error = new Error(words[status] || text.trim() || "the server answered " + status);
  error.final = ![404, 408, 409, 410, 423, 429, 503].includes(status);
  return error;
}
