// Talks to the policy service that serves this page.

/** A refusal by the service; `status` is HTTP's. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function call(method, path, body) {
  let answer;
  try {
    answer = await fetch(path, {
      method,
      credentials: "same-origin",
      headers: body === undefined ? {} : { "content-type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Refused(0, "The policy service can't be reached.");
  }
  const text = await answer.text();
  let value = null;
  try {
    value = text ? JSON.parse(text) : null;
  } catch {
    // An answer that isn't the console's own, such as a proxy's page.
  }
  if (answer.ok) return value;
  if (answer.status === 401 && path !== "/api/login") document.dispatchEvent(new CustomEvent("logged-out"));
  throw new Refused(answer.status, value?.error ?? `The policy service answered ${answer.status}.`);
}

export const get = (path, query = {}) => {
  const given = Object.entries(query).filter(([, value]) => value != null && value !== "");
  const encoded = new URLSearchParams(given).toString();
  return call("GET", encoded ? `${path}?${encoded}` : path);
};
export const post = (path, body = {}) => call("POST", path, body);

/**
 * Listens to what happens. The browser connects again by itself, and then begins anew: the service
 * sends what is recent and what is pending first, and all records have keys.
 */
export function listen(handlers) {
  const source = new EventSource("/api/events");
  source.addEventListener("open", () => handlers.connected(true));
  source.addEventListener("error", () => {
    handlers.connected(false);
    // A browser gives up on a source whose answer isn't an event stream, such as a 401.
    if (source.readyState === EventSource.CLOSED) get("/api/me").then(() => handlers.again(), () => handlers.again());
  });
  for (const name of ["execs", "approval", "status"]) {
    source.addEventListener(name, (event) => handlers[name](JSON.parse(event.data)));
  }
  return () => source.close();
}
