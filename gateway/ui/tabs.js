// The views as tabs: arrow keys move, the address keeps the place (#models, #why?model=demo).

const listeners = new Set();
let tabs = [];

export function startTabs(list) {
  tabs = [...list.querySelectorAll("[role=tab]")];
  for (const tab of tabs) tab.addEventListener("click", () => go(tab.dataset.view));
  list.addEventListener("keydown", onKey);
  window.addEventListener("hashchange", show);
  show();
}

export function onView(listener) {
  listeners.add(listener);
}

export function currentView() {
  const name = location.hash.slice(1).split("?")[0];
  return tabs.some((tab) => tab.dataset.view === name) ? name : "fleet";
}

export function viewParameter(name) {
  return new URLSearchParams(location.hash.split("?")[1] ?? "").get(name);
}

export function go(view, parameters = {}) {
  const query = new URLSearchParams(parameters).toString();
  location.hash = query ? `${view}?${query}` : view;
}

function show() {
  const view = currentView();
  for (const tab of tabs) {
    const chosen = tab.dataset.view === view;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    document.getElementById(tab.getAttribute("aria-controls")).hidden = !chosen;
  }
  document.title = `${tabs.find((tab) => tab.dataset.view === view).textContent} · Puna`;
  for (const listener of listeners) listener(view);
}

function onKey(event) {
  const place = tabs.indexOf(document.activeElement);
  const steps = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: tabs.length - 1 };
  if (place < 0 || !(event.key in steps)) return;
  event.preventDefault();
  const next = tabs[(steps[event.key] + tabs.length) % tabs.length];
  next.focus();
  go(next.dataset.view);
}
