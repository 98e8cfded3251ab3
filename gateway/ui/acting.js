// One thing at a time: the buttons of a card rest while something is asked, and what failed is said in words.

import { mark, say } from "./dom.js";
import { draw } from "./store.js";

// `made` has the card's `problem`; `made.busy` says what is being done, or is empty.
export async function act(made, work, doing = "asked") {
  const asked = document.activeElement;
  made.busy = doing;
  tell(made, "");
  draw();
  try {
    await work();
  } catch (error) {
    tell(made, error.message || "The gateway does not answer");
  } finally {
    made.busy = "";
    draw();
    requestAnimationFrame(() => giveBack(asked)); // after the button may be used again
  }
}

// A button that rests loses the focus; who came by keyboard goes on where they were.
function giveBack(element) {
  if (document.activeElement === document.body) element?.focus();
}

function tell(made, text) {
  say(made.problem, text);
  mark(made.problem, "title", text || null);
}
