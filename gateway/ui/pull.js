// Fetch models by name, and see how far that is. It goes on for as long as this page is open.

import { known, may, onAccess } from "./access.js";
import { announce } from "./announce.js";
import { call } from "./api.js";
import { h, mark, say } from "./dom.js";
import { bytes, percent, wait } from "./format.js";
import { linesOf } from "./sse.js";

// Speed is that of the last seconds: a mean over all of it would hide that a source became slow.
const SPEED_OVER_MS = 5000;
const parts = {};
const running = new Set();

export function makePull() {
  parts.name = h("input", {
    required: true,
    placeholder: "llama3.2:1b, hf.co/USER/REPOSITORY:Q4_K_M",
    autocomplete: "off",
    spellcheck: false,
    maxLength: 512,
  });
  parts.plain = h("input", { type: "checkbox" });
  parts.form = h(
    "form",
    {
      className: "row pull",
      onsubmit: (event) => (event.preventDefault(), begin(parts.name.value.trim(), parts.plain.checked)),
    },
    h("label", { className: "field inline" }, "Fetch", parts.name),
    h(
      "label",
      { className: "field check", title: "For registries that nodes may ask without TLS" },
      parts.plain,
      "Plain HTTP",
    ),
    h("button", { type: "submit" }, "Pull"),
  );
  parts.list = h("ul", { className: "pulls", ariaLabel: "Models that are fetched" });
  onAccess(drawAccess);
  drawAccess();
  return { form: parts.form, list: parts.list };
}

function drawAccess() {
  parts.form.hidden = known && !may("models:write");
  mark(parts.form, "data-known", String(known));
}

function begin(name, insecure) {
  if (!name || running.has(name)) return;
  parts.name.value = "";
  const control = new AbortController();
  const line = makeLine(name, () => control.abort());
  parts.list.prepend(line.row);
  announce(`Fetching ${name}`);
  running.add(name);
  fetchModel({ model: name, insecure, stream: true }, line, control.signal).finally(() => running.delete(name));
}

function makeLine(name, stop) {
  const line = {
    meter: h("progress", { className: "meter", max: 1, ariaLabel: `Fetching ${name}` }),
    text: h("span", { className: "doing" }, "Asking for it"),
    problem: h("span", { className: "problem", role: "alert" }),
    button: h("button", { className: "small", ariaLabel: `Stop fetching ${name}`, onclick: () => stop() }, "Stop"),
  };
  mark(line.meter, "data-active", "true");
  line.row = h(
    "li",
    { className: "card" },
    h("div", { className: "row" }, h("strong", {}, name), line.text, line.problem, line.button),
    line.meter,
  );
  line.end = (text, problem = "") => {
    say(line.text, text);
    say(line.problem, problem);
    mark(line.meter, "data-active", null);
    const away = h(
      "button",
      { className: "small quiet", ariaLabel: `Forget ${name}`, onclick: () => line.row.remove() },
      "Close",
    );
    const focused = document.activeElement === line.button;
    line.button.replaceWith(away);
    if (focused) away.focus();
  };
  return line;
}

async function fetchModel(body, line, signal) {
  const blobs = new Map();
  const heard = [];
  try {
    const response = await call("/api/pull", { method: "POST", body, signal });
    let status = "";
    let peers = [];
    for await (const text of linesOf(response)) {
      const news = JSON.parse(text);
      if (news.error) throw new Error(news.error.message ?? news.error);
      status = news.status;
      peers = news.peers ?? [];
      if (news.total) blobs.set(news.digest, { total: news.total, done: news.completed ?? 0 });
      show(line, status, blobs, heard);
    }
    if (status !== "success") throw new Error("The gateway broke off");
    line.end(`Fetched, ${bytes(sum(blobs, "total"))}${peers.length ? ` from ${peers.join(", ")}` : ""}`);
    announce(`${body.model} is fetched`);
  } catch (error) {
    if (signal.aborted) line.end("Stopped; another pull goes on from here");
    else line.end("", wordsOf(error));
    announce(signal.aborted ? `Fetching ${body.model} was stopped` : `Fetching ${body.model} failed`);
  }
}

// This dialect says no more than "forbidden".
function wordsOf(error) {
  if (error.status === 403) return "Refused: no node may fetch from that registry like this (PUNA_REGISTRIES)";
  return error.message || "The connection broke";
}

function show(line, status, blobs, heard) {
  const total = sum(blobs, "total");
  const done = sum(blobs, "done");
  if (!total || done >= total) {
    if (!total) line.meter.removeAttribute("value");
    else line.meter.value = 1;
    say(line.text, status);
    return;
  }
  line.meter.value = done / total;
  const now = performance.now();
  heard.push({ at: now, done });
  while (heard.length > 2 && now - heard[0].at > SPEED_OVER_MS) heard.shift();
  const speed = (done - heard[0].done) / Math.max(now - heard[0].at, 1);
  const words = [`${bytes(done)} of ${bytes(total)}`, percent(done / total)];
  if (speed > 0) words.push(`${bytes(Math.round(speed * 1000))}/s`, `about ${wait((total - done) / speed)} left`);
  say(line.text, words.join(" · "));
}

function sum(blobs, field) {
  return [...blobs.values()].reduce((total, blob) => total + blob[field], 0);
}
