// Asks before what cannot be taken back.

import { h } from "./dom.js";

// Resolves to true when it is to be done; Escape and Cancel mean no. `fields` stand between the text and the buttons.
export function confirmed({ title, text, action, fields = [] }) {
  return new Promise((resolve) => {
    const dialog = h(
      "dialog",
      { ariaLabel: title, onclose: () => (dialog.remove(), resolve(dialog.returnValue === "yes")) },
      h(
        "form",
        { onsubmit: (event) => (event.preventDefault(), dialog.close("yes")) },
        h("h2", {}, title),
        h("p", {}, text),
        ...fields,
        h(
          "div",
          { className: "row end" },
          h("button", { type: "button", className: "quiet", onclick: () => dialog.close("") }, "Cancel"),
          h("button", { type: "submit", className: "danger" }, action),
        ),
      ),
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}
