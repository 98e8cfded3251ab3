// Copies a text and returns the words for the status line.

import { announce } from "./announce.js";

export async function copied(text, name) {
  let words = `Copied ${name}`;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    words = "The browser does not let this page copy";
  }
  announce(words);
  return words;
}
