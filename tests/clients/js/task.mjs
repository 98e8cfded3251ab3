// What the scripts have in common; as tests/clients/python/task.py.
import assert from "node:assert/strict";

const facts = JSON.parse(process.argv[2]);
export const { url, model, word, stream } = facts;
export const toolQuestion = `Double 21 with the tool. ⟪call double {"number": 21}⟫ ⟪say The tool says {result}, ${word}.⟫`;
export const person = { name: word, age: 36 };
export const personQuestion = `Describe the person. ⟪say ${JSON.stringify(person)}⟫`;
const calls = [];

export function double({ number }) {
  calls.push(number);
  return 2 * number;
}

export function checkTool(answer, pieces = 0) {
  assert.deepEqual(calls, [21]);
  assert.ok(answer.includes(`The tool says 42, ${word}.`), answer);
  assert.ok(!stream || pieces > 0); // a busy machine sends a short answer in one
}

export function checkPerson(found) {
  assert.deepEqual({ name: found.name, age: found.age }, person);
}

export async function run(tasks) {
  await tasks[facts.task]();
}
