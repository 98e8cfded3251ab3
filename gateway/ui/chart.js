// A line of the last minutes. The place of every point is its time: without measurements there is a gap.

import { h, mark, s, say } from "./dom.js";

const WIDTH = 600;
const HEIGHT = 120;
const SPAN_MS = 300_000;
const GAP_MS = 3_000;

export function makeChart({ title, unit, series }) {
  const value = h("span", { className: series.length > 1 ? "value double" : "value" });
  const ceiling = h("span", { className: "ceiling faint", ariaHidden: "true" });
  const lines = series.map((one, place) => s("path", { class: `line line-${place} ${one.sparse ? "dots" : ""}` }));
  const area = s("path", { class: "area" });
  const drawing = s(
    "svg",
    { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" },
    [0.25, 0.5, 0.75, 1].map((part) =>
      s("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT * part - 0.5, y2: HEIGHT * part - 0.5 }),
    ),
    area,
    lines,
  );
  const names =
    series.length > 1 &&
    h(
      "span",
      { className: "names faint" },
      series.map((one, place) =>
        h("span", {}, h("i", { className: `dash dash-${place}`, ariaHidden: "true" }), one.name),
      ),
    );
  const card = h(
    "figure",
    { className: "card chartcard" },
    h(
      "figcaption",
      { className: "row" },
      h("h3", {}, title),
      names,
      h("span", { className: "push" }),
      value,
      h("span", { className: "faint unit" }, unit),
    ),
    h("div", { className: "plot" }, ceiling, drawing),
    h(
      "div",
      { className: "row axis faint", ariaHidden: "true" },
      h("span", {}, "5 min ago"),
      h("span", { className: "push" }),
      h("span", {}, "now"),
    ),
  );
  return { card, value, ceiling, lines, area, drawing, title, unit, series };
}

// `samples` are in order of time; null values are left out.
export function drawChart(chart, samples, now_ms, format) {
  const kept = samples.filter((sample) => sample.at_unix_ms > now_ms - SPAN_MS);
  const values = kept
    .flatMap((sample) => chart.series.map((one) => sample[one.field]))
    .filter((value) => value !== null);
  const limit = niceCeiling(Math.max(...values, 0));
  chart.series.forEach((one, place) => {
    const points = kept
      .filter((sample) => sample[one.field] !== null)
      .map((sample) => [
        WIDTH - ((now_ms - sample.at_unix_ms) / SPAN_MS) * WIDTH,
        HEIGHT - 1 - (sample[one.field] / limit) * (HEIGHT - 6),
        sample.at_unix_ms,
      ]);
    const runs = runsOf(points, one.sparse);
    mark(chart.lines[place], "d", runs.map((run) => pathOf(run)).join(""));
    if (place === 0)
      mark(
        chart.area,
        "d",
        one.sparse ? "" : runs.map((run) => `${pathOf(run)}V${HEIGHT}H${run[0][0].toFixed(1)}Z`).join(""),
      );
  });
  const newest = kept.at(-1);
  const shown = chart.series.map((one) => format(newest ? newest[one.field] : null)).join(" / ");
  say(chart.value, shown);
  say(chart.ceiling, values.length ? format(limit) : "");
  mark(
    chart.drawing,
    "aria-label",
    `${chart.title}: now ${shown} ${chart.unit}, at most ${format(values.length ? Math.max(...values) : null)} in the last five minutes`,
  );
}

function runsOf(points, sparse) {
  const runs = [];
  for (const point of points) {
    const last = runs.at(-1)?.at(-1);
    if (last && !sparse && point[2] - last[2] <= GAP_MS) runs.at(-1).push(point);
    else runs.push([point]);
  }
  return runs;
}

function pathOf(run) {
  const [first, ...rest] = run.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`);
  return `M${first}${rest.map((point) => `L${point}`).join("") || "h1"}`;
}

// The next 1, 2 or 5 times a power of ten, so that the scale moves seldom.
function niceCeiling(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((step) => step * power >= value) * power;
}
