// One replica in a line: where it lies, what it holds, how busy it is.

import { h, mark, say } from "./dom.js";
import { bytes, number } from "./format.js";

export function makeReplica() {
  const made = {
    state: h("span", { className: "dot", role: "img" }),
    text: h("span"),
    devices: h("span", { className: "faint" }),
    busy: h("span", { className: "busy" }),
  };
  const line = h(
    "li",
    { className: "replica" },
    made.state,
    made.text,
    made.devices,
    h("span", { className: "push" }),
    made.busy,
  );
  line.made = made;
  return line;
}

export function drawReplica(line, replica) {
  const { state, text, devices, busy } = line.made;
  mark(state, "data-state", replica.reachable || replica.state !== "ready" ? replica.state : "unreachable");
  mark(state, "aria-label", replica.state);
  say(text, replica.node);
  const shares = replica.layout.map(
    (share) => `${share.name} ${bytes(replica.measured_bytes[share.device])}, ${number(share.layers)} layers`,
  );
  if (replica.host_bytes) shares.push(`host ${bytes(replica.host_bytes)}`);
  say(devices, [...shares, `${number(replica.context_length)} tokens a slot`].join(" · "));
  mark(line, "title", `Placement ${replica.id}, generation ${replica.generation}`);
  say(busy, replica.state === "ready" ? `${replica.slots_busy}/${replica.slots_total} slots` : replica.state);
}
