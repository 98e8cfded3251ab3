// Filling the places of the strict cluster, and draining its node; as in strict.py.
export const COLD = "cold"; // a model that no case loads
export const POISON = 666; // a request with this seed kills its runner
export const LONG = 400; // tokens; the slow engine needs 20 s for them

async function until(holds, what, seconds = 60) {
  const end = Date.now() + seconds * 1000;
  while (!(await holds())) {
    if (Date.now() > end) throw new Error(`not within ${seconds} s: ${what}`);
    await new Promise((resume) => setTimeout(resume, 20));
  }
}

const send = (talk, path, more = {}) =>
  fetch(talk.url + path, { headers: { authorization: `Bearer ${talk.key}`, "content-type": "application/json" }, ...more });

const post = (talk, path, body, more = {}) => send(talk, path, { method: "POST", body: JSON.stringify(body), ...more });

export const ask = async (talk, path, body) => (await post(talk, path, body)).json();

async function isFull(talk) {
  return (await (await send(talk, "/puna/v1/queue")).json()).models.some((model) => model.depth > 0);
}

// While `run` runs, one request holds the slot, another waits, and there is room for no third.
export async function crowded(talk, run) {
  const leaving = new AbortController();
  const body = { model: "demo", prompt: "x", raw: true, options: { num_predict: LONG } };
  const asked = () => post(talk, "/api/generate", body, { signal: leaving.signal });
  let waiter = null;
  try {
    await (await asked()).body.getReader().read(); // its first token: the slot is its own until it leaves
    waiter = asked().then((answer) => answer.text()).catch(() => "");
    await until(() => isFull(talk), "a request waits");
    return await run();
  } finally {
    leaving.abort();
    await waiter;
    await until(async () => !(await isFull(talk)), "nobody waits any more");
  }
}

// While `run` runs, the only node takes no new replicas: a model that is not loaded cannot be served.
export async function drained(talk, run) {
  const [node] = (await (await send(talk, "/puna/v1/nodes")).json()).nodes;
  await post(talk, `/puna/v1/nodes/${node.id}/drain`, {});
  try {
    return await run();
  } finally {
    await post(talk, `/puna/v1/nodes/${node.id}/undrain`, {});
    const body = { model: "demo", prompt: "x", raw: true, options: { num_predict: 1 }, stream: false };
    await ask(talk, "/api/generate", body);
  }
}
