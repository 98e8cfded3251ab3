// Puts the page together.

import { ask, learn, may, startAccess } from "./access.js";
import { announce } from "./announce.js";
import { startConnect } from "./connect.js";
import { say } from "./dom.js";
import { wait } from "./format.js";
import { startFleet } from "./fleet.js";
import { startLive } from "./live.js";
import { startModels } from "./models.js";
import { startPlayground } from "./playground.js";
import { forget, store } from "./store.js";
import { follow, stop } from "./stream.js";
import { startTabs } from "./tabs.js";
import { startTheme } from "./theme.js";
import { startWhy } from "./why.js";

const RELEARN_MS = 3000;
const link = document.getElementById("link");
const linkText = document.getElementById("link-text");
let lastState = "";

function onLink(state, reason) {
  link.dataset.state = state;
  document.body.dataset.link = state;
  link.title = state === "stale" || state === "refused" ? String(reason?.message ?? reason) : "";
  store.silence = state === "refused" ? `Nothing to show: ${reason.message}.` : "Waiting for the gateway…";
  if (state === "refused") refused(reason);
  if (state !== lastState && lastState && state !== "connecting") announce(`Connection: ${wordsOf(state)}`);
  lastState = state;
  showLink();
}

function wordsOf(state) {
  if (state === "stale") return store.heardAt ? `Stale · ${wait(performance.now() - store.heardAt)}` : "No answer";
  return { live: "Connected", connecting: "Connecting", refused: "Not allowed" }[state] ?? state;
}

function showLink() {
  say(linkText, wordsOf(lastState || "connecting"));
}

function refused(error) {
  forget();
  if (error.status === 401) ask(error.message);
}

async function begin() {
  try {
    if (!(await learn())) {
      onLink("refused", new Error("an API key is needed"));
      return;
    }
  } catch (error) {
    onLink("stale", error);
    setTimeout(begin, RELEARN_MS);
    return;
  }
  if (may("models:read")) follow(onLink);
  else onLink("refused", new Error("this key lacks the scope models:read"));
}

startTheme(document.getElementById("theme-button"));
startAccess(() => {
  stop();
  forget();
  begin();
});
for (const [start, name] of [
  [startFleet, "fleet"],
  [startModels, "models"],
  [startWhy, "why"],
  [startLive, "live"],
  [startConnect, "connect"],
  [startPlayground, "playground"],
]) {
  start(document.getElementById(`view-${name}`));
}
startTabs(document.getElementById("tabs"));
setInterval(showLink, 1000);
begin();
