// Loads the page again if a part of it was lost on the way: without one of its modules nothing of it runs.

const AGAIN_MS = 2000;

async function again(url) {
  const answer = await fetch(url, { cache: "no-cache" }).catch(() => undefined);
  if (answer?.ok) location.reload();
  else setTimeout(again, AGAIN_MS, url);
}

addEventListener(
  "error",
  ({ target }) => {
    if (target instanceof HTMLScriptElement) setTimeout(again, AGAIN_MS, target.src);
    else if (target instanceof HTMLLinkElement) setTimeout(again, AGAIN_MS, target.href);
  },
  true,
);
