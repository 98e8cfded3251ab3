// What goes on now: rates of the last minutes, and every request in progress. Counts and names, never content.

import { drawChart, makeChart } from "./chart.js";
import { h, mark, say, sync } from "./dom.js";
import { NONE, duration, number, percent, plural, wait } from "./format.js";
import { store, watch } from "./store.js";
import { onView } from "./tabs.js";

const COLUMNS = ["Request", "Model", "Key", "State", "Prompt", "Tokens", "First token", "Since"];
const parts = {};
let root;

export function startLive(view) {
  root = view;
  const charts = [
    [
      {
        title: "Tokens",
        unit: "tokens/s",
        series: [
          { name: "answers", field: "tokens_per_s" },
          { name: "prompts", field: "prompt_tokens_per_s" },
        ],
      },
      (value) => number(value, value < 100 ? 1 : 0),
    ],
    [
      { title: "First token", unit: "mean", series: [{ name: "first token", field: "first_token_ms", sparse: true }] },
      (value) => duration(value),
    ],
    [
      { title: "Requests ended", unit: "per second", series: [{ name: "requests", field: "requests_per_s" }] },
      (value) => number(value, 1),
    ],
    [
      {
        title: "Requests",
        unit: "now",
        series: [
          { name: "running", field: "running" },
          { name: "waiting", field: "waiting" },
        ],
      },
      (value) => number(value),
    ],
  ];
  parts.charts = charts.map(([options, format]) => ({ chart: makeChart(options), format }));
  parts.count = h("span", { className: "faint" });
  parts.rows = h("tbody");
  parts.empty = h("p", { className: "empty" }, "No request is in progress.");
  const table = h(
    "table",
    { ariaLabel: "Requests in progress" },
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        COLUMNS.map((name) => h("th", { scope: "col" }, name)),
      ),
    ),
    parts.rows,
  );
  view.append(
    h("h2", { className: "unseen" }, "Live"),
    h(
      "div",
      { className: "charts" },
      parts.charts.map(({ chart }) => chart.card),
    ),
    h("div", { className: "row tools" }, h("h3", {}, "Requests in progress"), parts.count),
    h(
      "div",
      { className: "scroll card", tabIndex: 0, role: "region", ariaLabel: "Requests in progress" },
      table,
      parts.empty,
    ),
  );
  watch(draw);
  onView((name) => name === "live" && draw());
  setInterval(draw, 1000);
}

function draw() {
  if (root.hidden) return;
  const now_ms = Date.now() + store.skew_ms;
  const samples = [...store.samples.values()].sort((a, b) => a.at_unix_ms - b.at_unix_ms);
  const newest = samples.at(-1)?.at_unix_ms ?? now_ms;
  for (const { chart, format } of parts.charts) drawChart(chart, samples, newest, format);
  const requests = [...store.requests.entries()]
    .map(([number, request]) => ({ ...request, number: Number(number) }))
    .sort((a, b) => a.number - b.number);
  say(parts.count, requests.length ? plural(requests.length, "request") : "");
  sync(
    parts.rows,
    requests,
    (request) => request.number,
    makeRow,
    (row, request) => drawRow(row, request, now_ms),
  );
  parts.empty.hidden = requests.length > 0;
}

function makeRow() {
  const cells = COLUMNS.map(() => h("td"));
  const state = h("span", { className: "badge" });
  cells[3].append(state);
  const row = h("tr", {}, cells);
  row.made = { cells, state };
  return row;
}

function drawRow(row, request, now_ms) {
  const { cells, state } = row.made;
  const texts = [
    request.id ?? "another key's",
    request.model ?? NONE,
    request.key ?? NONE,
    null,
    number(request.prompt_tokens || null),
    number(request.tokens),
    duration(request.first_token_ms),
    wait(now_ms - request.started_unix_ms),
  ];
  texts.forEach((text, place) => text !== null && say(cells[place], text));
  const progress =
    request.progress === null
      ? ""
      : request.state === "loading"
        ? ` ${percent(request.progress)}`
        : ` ${request.progress}`;
  say(state, request.state + progress);
  mark(state, "data-state", request.state);
  mark(row, "title", request.route);
}
