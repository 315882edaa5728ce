// Makes elements. Text only ever becomes a text node: what sandboxes wrote can't become markup.

/** An element: `make("p.hint", {title: "…"}, "text", child)`. A function in `on…` listens. */
export function make(kind, ...parts) {
  const [tag, ...classes] = kind.split(".");
  const element = document.createElement(tag || "div");
  if (classes.length) element.className = classes.join(" ");
  for (const part of parts) {
    if (part == null || part === "") continue;
    if (part instanceof Node || typeof part !== "object") element.append(part);
    else if (Array.isArray(part)) element.append(...part.filter((child) => child != null));
    else for (const [name, value] of Object.entries(part)) set(element, name, value);
  }
  return element;
}

function set(element, name, value) {
  if (value == null || value === false) return;
  if (typeof value === "function") element.addEventListener(name.slice(2), value);
  else if (name.startsWith("--")) element.style.setProperty(name, value);
  else if (name === "value") element.value = value;
  else element.setAttribute(name, value === true ? "" : value);
}

/** Names and values, as a list of definitions; those without a value are left out. */
export function facts(entries) {
  const list = make("dl.facts");
  for (const [name, value] of entries) {
    if (value == null || value === "") continue;
    list.append(make("dt", name), make("dd", value));
  }
  return list;
}

/** The coloured word for what became of an exec. */
export function verdict(exec) {
  const word = exec.verdict ?? (exec.withdrawn ? "withdrawn" : "waiting");
  // A rule that is only monitored: what would have been, were it enforced.
  if (exec.would) return make(`span.verdict.${exec.would}.is-monitored`, { title: `It is ${word}; rules that are only monitored say ${exec.would}` }, `(${exec.would})`);
  return make(`span.verdict.${word}`, word);
}

const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

/** A time of milliseconds since 1970: the clock today, with the date before. */
export function time(milliseconds) {
  if (milliseconds == null) return make("time", "");
  const then = new Date(milliseconds);
  const today = new Date().toDateString() === then.toDateString();
  return make("time", { datetime: then.toISOString(), title: day.format(then) }, (today ? clock : day).format(then));
}

/** A duration of milliseconds, in the unit that suits it. */
export function duration(milliseconds) {
  if (milliseconds == null) return "";
  if (milliseconds <= 0) return "0";
  if (milliseconds < 1) return `${Math.max(1, Math.round(milliseconds * 1000))} µs`;
  if (milliseconds < 1000) return `${milliseconds.toFixed(milliseconds < 10 ? 1 : 0)} ms`;
  if (milliseconds < 60_000) return `${(milliseconds / 1000).toFixed(1)} s`;
  const seconds = Math.round(milliseconds / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

/** How a command ended, in words; empty while it runs. */
export function ending(exec) {
  if (exec.start_error) return make("span.bad-status", exec.start_error);
  if (exec.signal != null) return make("span.bad-status", `signal ${exec.signal}`);
  if (exec.exit_code == null) return "";
  return exec.exit_code === 0 ? "0" : make("span.bad-status", String(exec.exit_code));
}

/** What confines a session, in words. */
export const confinement = ({ sandbox, enforcement }) =>
  sandbox === "none" ? "none: what runs has all that its user may" : [sandbox, enforcement && `${{ full: "fully", partial: "partially", none: "not" }[enforcement] ?? enforcement} enforced`].filter(Boolean).join(", ");

/** A command line without the directory of its program, for where there is little room. */
export const brief = (command) => command.replace(/^[^\s'"]*\/(?=[^/\s])/, "");

let hiding;
/** Says something for a moment. */
export function toast(text) {
  const place = document.getElementById("toast");
  place.textContent = text;
  place.classList.add("is-shown");
  clearTimeout(hiding);
  hiding = setTimeout(() => place.classList.remove("is-shown"), 4000);
}
