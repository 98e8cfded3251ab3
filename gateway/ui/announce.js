// One sentence for those who do not see what changed.

import { say } from "./dom.js";

export function announce(text) {
  say(document.getElementById("announcer"), text);
}
