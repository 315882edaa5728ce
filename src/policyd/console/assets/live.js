// What happens now: the latest execs of all sessions, as they come.

import { make } from "./dom.js";
import { Selection, execDetail, execHead, execRow, keyOf, matcher } from "./list.js";

/** Most execs that are kept; and most rows that are shown, which is what a browser draws in time. */
const KEPT = 5000;
const SHOWN = 300;
/** Between two drawings, in milliseconds: quicker than that nobody reads. */
const PACE = 250;
/** How far down somebody reads, in pixels. */
const READING = 40;

/** The latest execs, by key, in the order in which they came. */
export class Recent {
  constructor() {
    this.execs = new Map();
    this.minute = [];
  }

  take(execs) {
    const now = Date.now();
    for (const exec of execs) {
      const key = keyOf(exec);
      if (!this.execs.has(key) && now - exec.time < 60_000) this.minute.push(exec.time);
      this.execs.set(key, exec);
    }
    for (const key of this.execs.keys()) {
      if (this.execs.size <= KEPT) break;
      this.execs.delete(key);
    }
  }

  /** Execs in the last minute. */
  rate() {
    const since = Date.now() - 60_000;
    this.minute = this.minute.filter((time) => time >= since);
    return this.minute.length;
  }
}

export function live(place, state) {
  let paused = null;
  let dirty = true;
  let only = null;
  let drawn = 0;
  const filter = make("input", {
    type: "search", placeholder: "Filter: words, session:3f2a, gate:ci, rule:push, code:timed-out", "aria-label": "Filter",
    value: state.filter ?? "", oninput: () => { state.filter = filter.value; draw(); },
  });
  const chips = make(
    "div.chips", { role: "group", "aria-label": "Verdict" },
    ["run", "escalate", "deny", "waiting"].map((word) =>
      make("button", { "aria-pressed": "false", onclick: (event) => {
        only = only === word ? null : word;
        for (const other of chips.children) other.setAttribute("aria-pressed", String(other === event.target && only !== null));
        draw();
      } }, word)),
  );
  const pause = make("button", { onclick: toggle, title: "p" }, "Pause");
  // Who has scrolled down reads: nothing moves there until they go back to the top.
  const view = place.parentElement;
  const newer = make("button.newer", { hidden: true, onclick: () => { view.scrollTop = 0; draw(); } }, "Newer ones ↑");
  const reads = () => view.scrollTop > READING;
  view.onscroll = () => { if (place.isConnected && !newer.hidden && !reads()) draw(); };
  const rows = make("div.rows", { role: "listbox", "aria-label": "Execs, the latest first", tabindex: "0" });
  const split = make("div.split", rows);
  const selection = new Selection(rows, (key) => show(key));
  place.append(make("div.toolbar", filter, chips, pause), newer, split);

  function toggle() {
    paused = paused ? null : new Map(state.recent.execs);
    pause.textContent = paused ? "Go on" : "Pause";
    draw();
  }

  function show(key) {
    split.querySelector(".detail")?.remove();
    const exec = key && (paused ?? state.recent.execs).get(key);
    split.classList.toggle("has-detail", Boolean(exec));
    if (exec) split.append(execDetail(exec, () => selection.choose(null)));
  }

  function draw() {
    dirty = false;
    drawn = Date.now();
    newer.hidden = true;
    const matches = matcher(filter.value);
    const chosen = [];
    for (const exec of [...(paused ?? state.recent.execs).values()].reverse()) {
      if (only && (exec.verdict ?? (exec.withdrawn ? "withdrawn" : "waiting")) !== only) continue;
      if (!matches(exec)) continue;
      chosen.push(execRow(exec));
      if (chosen.length === SHOWN) break;
    }
    const nothing = state.recent.execs.size
      ? "Nothing recent matches. History searches further back."
      : "No command has asked yet. What sandboxes ask appears here at once.";
    rows.replaceChildren(execHead(), ...(chosen.length ? chosen : [make("p.empty", nothing)]));
    selection.mark();
  }

  draw();
  return {
    // Never behind a tab that isn't seen.
    execs: () => {
      if (paused || dirty) return;
      if (reads()) {
        newer.hidden = false;
        return;
      }
      dirty = true;
      const wait = Math.max(0, drawn + PACE - Date.now());
      setTimeout(() => requestAnimationFrame(() => {
        if (!place.isConnected || !dirty) return;
        draw();
        if (selection.key) show(selection.key);
      }), wait);
    },
    key: (key) => {
      if (key === "/") filter.focus();
      else if (key === "p") toggle();
      else if (key === "j" || key === "ArrowDown") selection.move(1);
      else if (key === "k" || key === "ArrowUp") selection.move(-1);
      else if (key === "Escape") selection.choose(null);
      else return false;
      return true;
    },
  };
}
