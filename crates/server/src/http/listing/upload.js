// The upload form of a directory's page: tus 1.0 by plain means of the browser.
// A file goes in one request; after a cut it goes on at the byte that the server names. Which upload
// a file belongs to is kept until it is done, so that it goes on after the page was closed, too.
"use strict";

const form = document.getElementById("upload");
const list = document.getElementById("uploads");
const UPLOADS = "/api/v1/uploads";
const PAUSE_MAX = 30; // seconds between two tries
const TRIES = 20; // without a byte more

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const token = form.elements.token.value.trim();
  const replace = form.elements.replace.checked;
  const files = [...form.elements.files.files];
  form.elements.start.disabled = true;
  let stored = 0;
  for (const file of files) {
    if (await upload(file, token, replace, line(file.name))) stored += 1;
  }
  form.elements.start.disabled = false;
  if (stored > 0 && stored === files.length) {
    form.elements.files.value = "";
    list.dataset.done = "yes";
  }
});

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
  const line = { bar, word, stopped: false, request: null, say: (text) => (word.textContent = text) };
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

async function upload(file, token, replace, line) {
  const path = form.dataset.directory + file.name;
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
  const words = {
    401: "the server does not know this token",
    412: "there is a title of this name; tick “replace” to replace it",
  };
  const error = new Error(words[status] || text.trim() || "the server answered " + status);
  error.final = ![404, 408, 409, 410, 423, 429, 503].includes(status);
  return error;
}
