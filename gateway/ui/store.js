// What the gateway says, as last heard: sections of items by id. Views are drawn once a frame at most.

const SECTIONS = ["gateway", "nodes", "models", "requests", "samples"];

export const store = Object.fromEntries(SECTIONS.map((name) => [name, new Map()]));
store.heardAt = 0; // performance.now() of the last message; 0: nothing was heard yet
store.silence = "Waiting for the gateway…"; // why there is nothing to show
store.skew_ms = 0; // the gateway's clock minus ours

const listeners = new Set();
let drawing = false;

export function watch(listener) {
  listeners.add(listener);
}

export function replaceAll(sections) {
  for (const name of SECTIONS) store[name] = new Map(Object.entries(sections[name] ?? {}));
  heard();
}

export function apply(changes) {
  for (const [name, change] of Object.entries(changes)) {
    if (!store[name]) continue;
    for (const id of change.gone ?? []) store[name].delete(id);
    for (const [id, item] of Object.entries(change.set ?? {})) store[name].set(id, item);
  }
  heard();
}

export function forget() {
  for (const name of SECTIONS) store[name] = new Map();
  store.heardAt = 0;
  draw();
}

export function draw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    for (const listener of listeners) listener(store);
  });
}

function heard() {
  store.heardAt = performance.now();
  const at = store.gateway.get("status")?.nodes_at_unix_ms;
  if (at) store.skew_ms = Math.max(store.skew_ms, at - Date.now());
  draw();
}

export function sorted(section, by = (item) => item.name ?? item.id) {
  return [...store[section].values()].sort((a, b) => (by(a) < by(b) ? -1 : by(a) > by(b) ? 1 : 0));
}
