// Settings for other programs, with this page's address, and checks of the model against their needs.

import { may, onAccess } from "./access.js";
import { ApiError, json } from "./api.js";
import { filled } from "./client_text.js";
import { CLIENTS } from "./clients.js";
import { copied } from "./clipboard.js";
import { h, mark, say } from "./dom.js";
import { number } from "./format.js";
import { sorted, store, watch } from "./store.js";
import { currentView, onView, viewParameter } from "./tabs.js";

const AGAIN_MS = 1000;
const AGAIN_MAX = 20;
const parts = {};
let asked = 0;

export function startConnect(view) {
  const options = CLIENTS.map((client) => h("option", { value: client.key }, client.name));
  parts.client = h("select", {}, options);
  parts.model = h("select", {});
  parts.checks = h("ul", { className: "checks card", ariaLive: "polite" });
  parts.texts = h("div", { className: "texts" });
  parts.state = h("p", { className: "faint", role: "status" });
  view.append(
    h("h2", { className: "unseen" }, "Connect"),
    h(
      "form",
      { className: "row tools", onsubmit: (event) => event.preventDefault() },
      h("label", { className: "field inline" }, "Client", parts.client),
      h("label", { className: "field inline" }, "Model", parts.model),
      parts.state,
    ),
    h("div", { className: "connection" }, parts.checks, parts.texts),
  );
  for (const field of [parts.client, parts.model]) field.addEventListener("change", () => look());
  watch(drawModels);
  onAccess(drawModels);
  onView((name) => name === "connect" && arrive());
}

function arrive() {
  const wanted = viewParameter("client");
  if (CLIENTS.some((client) => client.key === wanted)) parts.client.value = wanted;
  look();
}

function drawModels() {
  const names = sorted("models")
    .filter((model) => !model.error && model.capabilities.includes("completion"))
    .map((model) => model.name);
  if (names.join("\n") === parts.names) return;
  parts.names = names.join("\n");
  const chosen = parts.model.value || viewParameter("model");
  parts.model.replaceChildren(...names.map((name) => h("option", { value: name }, name.replace(/:latest$/, ""))));
  parts.model.value = names.includes(chosen) ? chosen : (names[0] ?? "");
  if (currentView() === "connect") look();
}

async function look(again = 0) {
  const count = (asked += 1);
  const client = CLIENTS.find((one) => one.key === parts.client.value);
  const model = store.models.get(parts.model.value);
  if (!model) {
    parts.checks.replaceChildren(check("warn", "There is no model yet that answers."));
    parts.texts.replaceChildren();
    return;
  }
  try {
    const [shown, explained] = await Promise.all([
      json("/api/show", { method: "POST", body: { model: model.name } }),
      json("/puna/v1/explain", { method: "POST", body: { model: model.name } }),
    ]);
    if (count !== asked) return;
    draw(client, model, contextOf(model, shown, explained));
    // A model that was never loaded is being measured: the answer follows by itself.
    if (explained.outcome === "measuring" && again < AGAIN_MAX)
      setTimeout(() => count === asked && look(again + 1), AGAIN_MS);
  } catch (error) {
    if (count !== asked) return;
    draw(client, model, 0);
    parts.checks.append(check("warn", error instanceof ApiError ? error.message : "The gateway does not answer."));
  }
}

// The context that a request without num_ctx gets; 0: not known.
function contextOf(model, shown, explained) {
  const own = Number(/^num_ctx\s+(\d+)/m.exec(shown.parameters ?? "")?.[1] ?? 0);
  if (own) return Math.min(own, model.context_tokens || own);
  const loaded = model.replicas.map((replica) => replica.context_length).filter(Boolean);
  return loaded.length ? Math.min(...loaded) : (explained.layout?.context_length ?? 0);
}

function draw(client, model, context) {
  const name = model.name.replace(/:latest$/, "");
  const wanted = Math.min(client.context || context, model.context_tokens || Infinity);
  const used = context >= client.context_min ? context || wanted : wanted;
  parts.checks.replaceChildren(...checks(client, model, name, context, wanted));
  const cards = client.settings
    .map((setting) => [
      setting,
      filled(setting.text, { client, model: name, context: used, capabilities: model.capabilities }),
    ])
    .filter(([, text]) => text.trim())
    .map(([setting, text]) => card(setting.title, text));
  const start = client.start && h("p", {}, "Start it with ", h("code", {}, client.start), ".");
  const command = h("p", { className: "faint" }, "The same from a shell: ", h("code", {}, shellCommand(client, name)));
  const limits = h("ul", { className: "facts" }, client.limits.map((text) => h("li", {}, ...withCode(text))));
  parts.texts.replaceChildren(...cards, ...[start, command, limits].filter(Boolean));
  say(parts.state, "");
}

function shellCommand(client, model) {
  const writes = client.settings.some((setting) => setting.path);
  return `puna connect ${client.key} --model ${model}${writes ? " --write" : ""}`;
}

function checks(client, model, name, context, wanted) {
  const found = [];
  if (!may("infer")) found.push(check("fail", "This key may not ask models: it lacks the scope infer."));
  if (client.needs_tools && !model.capabilities.includes("tools"))
    found.push(check("fail", `${name} takes no tools, and ${client.name} works with tools.`));
  else found.push(check("ok", `${name} can do what ${client.name} needs.`));
  if (!context) return [...found, check("warn", "The context of a request is not known yet.")];
  if (model.context_tokens && model.context_tokens < client.context_min)
    found.push(
      check(
        "fail",
        `${name} was trained for ${number(model.context_tokens)} tokens, ${client.name} needs ${number(client.context_min)}: choose another model.`,
      ),
    );
  else if (context < wanted || context < client.context_min)
    found.push(
      check(
        context < client.context_min ? "fail" : "warn",
        `Requests get ${number(context)} tokens, ${client.name} needs ${number(client.context_min)}, better ${number(client.context)}. `,
        h("code", {}, `puna connect ${client.key} --model ${name} --fix`),
        " has the model loaded with more, as far as that fits.",
      ),
    );
  else found.push(check("ok", `Requests get ${number(context)} tokens.`));
  return found;
}

function check(level, ...text) {
  const state = { ok: "ok", warn: "busy", fail: "broken" }[level];
  const badge = h("span", { className: "badge" }, level);
  mark(badge, "data-state", state);
  return h("li", {}, badge, h("span", {}, ...text));
}

function card(title, text) {
  return h(
    "section",
    { className: "card", ariaLabel: title },
    h(
      "div",
      { className: "row" },
      h("h3", {}, title),
      h("span", { className: "push" }),
      h(
        "button",
        {
          type: "button",
          className: "small",
          ariaLabel: `Copy ${title}`,
          onclick: async () => say(parts.state, await copied(text, title)),
        },
        "Copy",
      ),
    ),
    h("pre", { tabIndex: 0, ariaLabel: title }, text.trimEnd()),
  );
}

// Words between backticks are code.
function withCode(text) {
  return text.split("`").map((part, place) => (place % 2 ? h("code", {}, part) : part));
}
