// Calls of this gateway with the key of this tab. Nothing is ever sent anywhere else.

const KEY = "puna.key";
const BASE = location.pathname.replace(/\/ui\/?$/, "");

export class ApiError extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (text) => (text ? sessionStorage.setItem(KEY, text) : sessionStorage.removeItem(KEY)),
};

export function gatewayUrl(path) {
  return `${location.origin}${BASE}${path}`;
}

export async function call(path, { method = "GET", body, signal, headers = {} } = {}) {
  const sent = { ...headers };
  if (key.get()) sent.authorization = `Bearer ${key.get()}`;
  if (body !== undefined) sent["content-type"] = "application/json";
  const response = await fetch(BASE + path, {
    method,
    headers: sent,
    body: body === undefined ? undefined : JSON.stringify(body),
    signal,
    cache: "no-store",
    credentials: "omit",
    redirect: "error",
  });
  if (!response.ok) throw await errorOf(response);
  return response;
}

export async function json(path, options) {
  return (await call(path, options)).json();
}

async function errorOf(response) {
  const text = await response.text().catch(() => "");
  try {
    const { error } = JSON.parse(text);
    return new ApiError(response.status, error.message ?? String(error), error.code);
  } catch {
    return new ApiError(response.status, text.slice(0, 200) || `status ${response.status}`);
  }
}
