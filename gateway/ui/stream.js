// The one stream that everything live comes from: read, and when it ends, begun again.

import { ApiError, call } from "./api.js";
import { eventsOf } from "./sse.js";
import { apply, replaceAll } from "./store.js";

const RETRY_MS_MIN = 500;
const RETRY_MS_MAX = 10_000;
// The gateway says something every 5 s; after this much silence the connection is taken for dead.
const SILENCE_MS_MAX = 12_000;

let running = null;

// `onLink` hears "connecting", "live", "stale" and "refused", with the reason.
export function follow(onLink) {
  stop();
  const control = new AbortController();
  running = control;
  readForEver(control.signal, onLink);
}

export function stop() {
  running?.abort();
  running = null;
}

async function readForEver(signal, onLink) {
  let retry_ms = RETRY_MS_MIN;
  onLink("connecting");
  while (!signal.aborted) {
    let reason = "the stream ended";
    try {
      await readOnce(signal, () => {
        retry_ms = RETRY_MS_MIN;
        onLink("live");
      });
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && [401, 403].includes(error.status)) {
        onLink("refused", error);
        return;
      }
      reason = error.message;
    }
    if (signal.aborted) return;
    onLink("stale", reason);
    await pause(retry_ms * (0.75 + Math.random() / 2), signal);
    retry_ms = Math.min(retry_ms * 2, RETRY_MS_MAX);
  }
}

async function readOnce(signal, onLive) {
  const own = new AbortController();
  const end = () => own.abort();
  signal.addEventListener("abort", end);
  let silence = setTimeout(end, SILENCE_MS_MAX);
  try {
    const response = await call("/puna/v1/events", { signal: own.signal });
    for await (const event of eventsOf(response)) {
      clearTimeout(silence);
      silence = setTimeout(end, SILENCE_MS_MAX);
      if (event.name === "snapshot") {
        replaceAll(JSON.parse(event.data));
        onLive();
      } else if (event.name === "change") apply(JSON.parse(event.data));
      else if (event.name === "end") return;
    }
  } finally {
    clearTimeout(silence);
    signal.removeEventListener("abort", end);
    own.abort();
  }
}

// Ends early when the browser finds the network again.
function pause(ms, signal) {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      window.removeEventListener("online", done);
      signal.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    window.addEventListener("online", done);
    signal.addEventListener("abort", done);
  });
}
