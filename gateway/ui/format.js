// Figures as people read them. A figure that is not known is a dash, never a zero.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
export const NONE = "–";

export function bytes(count) {
  if (count === null || count === undefined) return NONE;
  let value = count;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toFixed(value >= 100 ? 0 : 1)} ${UNITS[unit]}`;
}

export function number(value, digits = 0) {
  if (value === null || value === undefined) return NONE;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

export function percent(fraction) {
  return fraction === null || fraction === undefined ? NONE : `${Math.floor(fraction * 100)} %`;
}

// 640 ms, 4.2 s, 3 min 20 s, 2 h 5 min
export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return NONE;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

// For waits that are counted while one looks: whole seconds, so that the last digit does not flicker.
export function wait(ms) {
  const seconds = Math.max(Math.round(ms / 1000), 0);
  return seconds < 60 ? `${seconds} s` : duration(seconds * 1000);
}

export function crashText(row, now) {
  const left = row.retry_at_unix_ms - now;
  const next = left < 500 ? "with the next request" : `in ${wait(left)}`;
  return `crashed ${number(row.crashes)} times in a row, next try ${next}: ${row.error}`;
}

export function probability(logprob) {
  const value = Math.exp(logprob) * 100;
  if (value >= 99.95) return "100 %";
  return value < 0.01 ? "< 0.01 %" : `${value.toFixed(value < 1 ? 2 : 1)} %`;
}

export function plural(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}
